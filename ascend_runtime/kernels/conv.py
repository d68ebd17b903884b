"""Triton kernels of causal convolutions; the definitions are in `ascend_runtime.reference.conv`.

Three launches: the history of each sequence is copied out of its line, the tokens are convolved,
and the newest tokens are copied into the lines. So no program reads a line that another one writes,
and only copies of one line at a time need 64-bit addresses.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import spans_little, vector_grid
from ascend_runtime.reference.conv import PAD_SLOT_ID, Sequences, agree, flatten

#: Tokens and channels of a tile.
_TOKENS: Final = 16
_CHANNELS: Final = 256


@triton.jit(
    do_not_specialize=["batch", "channels", "tiles", "line_step", "channel_step", "column_step"]
)
def _history_kernel(
    history,
    states,
    lines,
    flags,
    accepted,
    batch,
    channels,
    tiles,
    line_step,
    channel_step,
    column_step,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_FLAGS: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
):
    """Write history [B, TAPS, D], zeros where there is none."""
    for task in range(tl.program_id(0), batch * tiles, tl.num_programs(0)):
        one = task // tiles
        channel = (task - one * tiles) * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        line = tl.load(lines + one)
        wanted = line >= 0
        if HAS_FLAGS:
            wanted = wanted & (tl.load(flags + one).to(tl.int32) != 0)
        skip = 0
        if HAS_ACCEPTED:
            skip = tl.maximum(tl.load(accepted + one).to(tl.int32) - 1, 0)
        row = states + tl.maximum(line, 0).to(tl.int64) * line_step
        for tap in tl.static_range(TAPS):
            place = row + (skip + tap) * column_step + channel * channel_step
            value = tl.load(place, mask=inside & wanted, other=0.0)
            tl.store(history + (one * TAPS + tap) * channels + channel, value, mask=inside)


@triton.jit(
    do_not_specialize=["tokens", "channels", "tiles", "token_step", "channel_step", "out_step"]
)
def _convolve_kernel(
    out,
    x,
    weight,
    bias,
    history,
    owners,
    places,
    kept_tokens,
    tokens,
    channels,
    tiles,
    token_step,
    channel_step,
    out_step,
    TAPS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    KEEP_PADDING: tl.constexpr,
):
    """Write out [T, D]; x is [T, D], weight [TAPS + 1, D], history [B, TAPS, D]."""
    blocks = tl.cdiv(tokens, TOKENS)
    for task in range(tl.program_id(0), blocks * tiles, tl.num_programs(0)):
        tile = task // blocks
        channel = tile * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        first = (task - tile * blocks) * TOKENS
        initial = tl.zeros((CHANNELS,), tl.float32)
        if HAS_BIAS:
            initial = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
        for token in range(first, tl.minimum(first + TOKENS, tokens)):
            owner = tl.load(owners + token)
            place = tl.load(places + token)
            total = initial
            for tap in tl.static_range(TAPS + 1):
                w = tl.load(weight + tap * channels + channel, mask=inside, other=0.0)
                # One of the two is loaded, the other is zeros.
                new = place >= TAPS - tap
                source = x + (token + (tap - TAPS)) * token_step + channel * channel_step
                value = tl.load(source, mask=inside & new, other=0.0).to(tl.float32)
                if tap < TAPS:
                    kept = history + (owner * TAPS + place + tap) * channels + channel
                    old = place < TAPS - tap
                    value += tl.load(kept, mask=inside & old, other=0.0).to(tl.float32)
                total += value * w.to(tl.float32)
            if SILU:
                total = total * tl.sigmoid(total)
            written = inside
            if KEEP_PADDING:
                written = inside & (tl.load(kept_tokens + token) == 0)
            place_out = out + token * out_step + channel
            tl.store(place_out, total.to(out.dtype.element_ty), mask=written)


@triton.jit(
    do_not_specialize=[
        "batch",
        "channels",
        "tiles",
        "token_step",
        "x_step",
        "line_step",
        "channel_step",
        "column_step",
    ]
)
def _state_kernel(
    states,
    x,
    history,
    lines,
    starts,
    batch,
    channels,
    tiles,
    token_step,
    x_step,
    line_step,
    channel_step,
    column_step,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SHIFT_BY_ONE: tl.constexpr,
):
    """Write the newest tokens; if SHIFT_BY_ONE, history but for its first column and all tokens."""
    for task in range(tl.program_id(0), batch * tiles, tl.num_programs(0)):
        one = task // tiles
        channel = (task - one * tiles) * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        line = tl.load(lines + one)
        start = tl.load(starts + one)
        count = tl.load(starts + one + 1) - start
        if (line >= 0) & (count > 0):
            row = states + line.to(tl.int64) * line_step
            columns = TAPS
            first = count
            if SHIFT_BY_ONE:
                columns = TAPS - 1 + count
                first = count * 0 + 1
            for column in range(0, columns):
                place = first + column
                is_new = place >= TAPS
                kept = history + (one * TAPS + tl.minimum(place, TAPS - 1)) * channels + channel
                old = tl.load(kept, mask=inside, other=0.0)
                source = (start + tl.maximum(place - TAPS, 0)) * token_step
                new = tl.load(x + source + channel * x_step, mask=inside, other=0.0)
                value = tl.where(is_new, new.to(tl.float32), old.to(tl.float32))
                target = row + column * column_step + channel * channel_step
                tl.store(target, value.to(states.dtype.element_ty), mask=inside)


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: bool | str | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    num_computed_tokens: torch.Tensor | None = None,
    block_size_to_align: int = 0,
    metadata: Any = None,
    validate_data: bool = False,
) -> torch.Tensor:
    """See `ascend_runtime.reference.conv.causal_conv1d_fn`; without prefix caching."""
    work = x.to(conv_states.dtype).T
    out = torch.empty(work.shape, dtype=work.dtype, device=x.device)
    cache_indices, query_start_loc = agree(cache_indices, query_start_loc)
    batch = len(query_start_loc) - 1
    flags = has_initial_state
    if flags is None:
        flags = torch.zeros(batch, dtype=torch.bool, device=x.device)
    _run(
        work,
        out,
        weight,
        bias,
        conv_states,
        query_start_loc,
        _indices(cache_indices, batch, x.device),
        flags,
        None,
        activation,
        keep_padding=False,
    )
    return out.to(x.dtype).T


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int = PAD_SLOT_ID,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    validate_data: bool = False,
) -> torch.Tensor:
    """See `ascend_runtime.reference.conv.causal_conv1d_update`; without prefix caching."""
    work = x.to(conv_state.dtype)
    flat, most = flatten(work, query_start_loc, max_query_len)
    loc = query_start_loc
    if loc is None:
        loc = torch.arange(0, len(flat) + 1, most, dtype=torch.int32, device=x.device)
    conv_state_indices, loc = agree(conv_state_indices, loc)
    out = flat.clone(memory_format=torch.contiguous_format)
    _run(
        flat,
        out,
        weight,
        bias,
        conv_state,
        loc,
        _indices(conv_state_indices, len(loc) - 1, x.device),
        None,
        num_accepted_tokens,
        activation,
        keep_padding=True,
    )
    if work.dim() == 3:
        out = out.view(work.shape[0], work.shape[2], work.shape[1]).transpose(1, 2)
    work.copy_(out)
    return work.to(x.dtype)


def causal_conv1d_fn_fits(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: bool | str | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    *_: Any,
    **__: Any,
) -> bool:
    """Whether vLLM's widths, no prefix caching, and the usual mark of padding are asked for."""
    plain = block_idx_last_scheduled_token is None and pad_slot_id == PAD_SLOT_ID
    return plain and 2 <= weight.shape[1] <= 4 and spans_little(x)


def causal_conv1d_update_fits(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: bool | str | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int = PAD_SLOT_ID,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    *_: Any,
    **__: Any,
) -> bool:
    """Whether vLLM's widths, no prefix caching, and the usual mark of padding are asked for."""
    plain = block_idx_last_scheduled_token is None and pad_slot_id == PAD_SLOT_ID
    return plain and 2 <= weight.shape[1] <= 4 and spans_little(x)


def _indices(indices: torch.Tensor | None, batch: int, device: torch.device) -> torch.Tensor:
    if indices is None:
        return torch.arange(batch, dtype=torch.int32, device=device)
    return (indices if indices.dim() == 1 else indices[:, 0]).to(torch.int32).contiguous()


def _run(
    x: torch.Tensor,
    out: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    starts: torch.Tensor,
    lines: torch.Tensor,
    flags: torch.Tensor | None,
    accepted: torch.Tensor | None,
    activation: bool | str | None,
    *,
    keep_padding: bool,
) -> None:
    """Convolve x [T, D] into out [T, D], contiguous, and write the states."""
    tokens, channels = x.shape
    batch, taps = len(lines), weight.shape[1] - 1
    if not tokens or not batch:
        return
    starts = starts.to(torch.int32).contiguous()
    tiles = triton.cdiv(channels, _CHANNELS)
    history = torch.empty(batch, taps, channels, dtype=states.dtype, device=x.device)
    steps = (states.stride(0), states.stride(1), states.stride(2))
    _history_kernel[vector_grid(batch * tiles)](
        history,
        states,
        lines,
        lines if flags is None else flags.contiguous(),
        lines if accepted is None else accepted.contiguous(),
        batch,
        channels,
        tiles,
        *steps,
        TAPS=taps,
        CHANNELS=_CHANNELS,
        HAS_FLAGS=flags is not None,
        HAS_ACCEPTED=accepted is not None,
    )
    where = Sequences.of(starts, tokens)
    blocks = triton.cdiv(tokens, _TOKENS)
    _convolve_kernel[vector_grid(blocks * tiles)](
        out,
        x,
        weight.T.contiguous(),
        weight if bias is None else bias.contiguous(),
        history,
        where.owner.int(),
        where.place.int(),
        (~where.have(lines >= 0)).int(),
        tokens,
        channels,
        tiles,
        x.stride(0),
        x.stride(1),
        out.stride(0),
        TAPS=taps,
        TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
        HAS_BIAS=bias is not None,
        SILU=bool(activation),
        KEEP_PADDING=keep_padding,
    )
    _state_kernel[vector_grid(batch * tiles)](
        states,
        x,
        history,
        lines,
        starts,
        batch,
        channels,
        tiles,
        x.stride(0),
        x.stride(1),
        *steps,
        TAPS=taps,
        CHANNELS=_CHANNELS,
        SHIFT_BY_ONE=accepted is not None,
    )
