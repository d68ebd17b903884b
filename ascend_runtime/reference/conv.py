"""Causal convolutions of Mamba-like layers, defined in plain torch.

A sequence with W - 1 tokens of history before it is convolved, channel by channel, with W taps:
y_t = act(bias + sum_j w_j * xh_(t + j)), where xh is the history and then the tokens. A line of
`conv_states` keeps the newest tokens of a sequence, oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PAD_SLOT_ID = -1


@dataclass(frozen=True)
class Sequences:
    """Where the tokens of a flat batch belong."""

    starts: torch.Tensor
    """int64 [B], the first token of each."""
    lengths: torch.Tensor
    """int64 [B]."""
    owner: torch.Tensor
    """int64 [T], the sequence of each token."""
    place: torch.Tensor
    """int64 [T], how many tokens of its sequence are before it."""

    @classmethod
    def of(cls, query_start_loc: torch.Tensor, tokens: int) -> Sequences:
        """Read them from the cumulative lengths, int [B + 1]; nothing is waited for."""
        ends = query_start_loc.long()
        token = torch.arange(tokens, device=ends.device)
        owner = torch.searchsorted(ends[1:].contiguous(), token, right=True)
        owner = owner.clamp(max=max(len(ends) - 2, 0))
        return cls(ends[:-1], ends.diff(), owner, token - ends[:-1][owner] if tokens else token)

    def have(self, chosen: torch.Tensor) -> torch.Tensor:
        """Say of each token, bool [T], whether its sequence is among those chosen, bool [B].

        Tokens behind the last sequence are of none.
        """
        return chosen[self.owner] & (self.place < self.lengths[self.owner])


def agree(
    indices: torch.Tensor | None, query_start_loc: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Cut indices and cumulative lengths to the sequences that both have; either may be padded."""
    if indices is None:
        return None, query_start_loc
    batch = min(len(indices), len(query_start_loc) - 1)
    return indices[:batch], query_start_loc[: batch + 1]


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
    """Convolve the tokens of a batch of sequences, and leave the newest in their lines.

    Args:
        x: [D, T], any float; it is worked on in the dtype of `conv_states`.
        weight: [D, W], W from 2 to 4 (ValueError otherwise).
        bias: [D] or None.
        conv_states: [lines, D, S], S >= W - 1, written in place: the first W - 1 columns.
        query_start_loc: int32 [B + 1].
        cache_indices: int32 [B], the line of each sequence, i if not given. `pad_slot_id`: nothing
            is written, and the sequence's columns of the result are undefined.
        has_initial_state: bool [B], whether the line holds history; otherwise it is zeros, whatever
            the line holds. None: nowhere.
        activation: "silu", "swish" or True; None or False: none.
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx,
        num_computed_tokens, block_size_to_align: for prefix caching, int32 [B] each, with
            `cache_indices` [B, blocks]: history comes from block `initial_state_idx`, the newest
            tokens go to the last block, and the state after each full block of the step to the
            block before.
        metadata, validate_data: not used.

    Returns: [D, T], the dtype of `x`, in whose memory the channels of a token lie together.
    """
    width = check_width(weight)
    taps = width - 1
    wide = x.to(conv_states.dtype).T.float()
    cache_indices, query_start_loc = agree(cache_indices, query_start_loc)
    batch = len(query_start_loc) - 1
    sequences = Sequences.of(query_start_loc, len(wide))
    first = last = _lines(cache_indices, batch, x.device)
    if block_idx_last_scheduled_token is not None:
        assert cache_indices is not None and initial_state_idx is not None
        first = _pick(cache_indices, initial_state_idx)
        last = _pick(cache_indices, block_idx_last_scheduled_token)
    known = first != pad_slot_id
    start = torch.zeros_like(known)
    if has_initial_state is not None:
        start = has_initial_state[:batch].bool()
    history = conv_states[first.clamp(min=0).long(), :, :taps].transpose(1, 2).float()
    history = torch.where((known & start)[:, None, None], history, 0.0)
    y = _convolve(wide, weight, bias, history, sequences, activation)
    if block_idx_last_scheduled_token is not None:
        assert cache_indices is not None
        assert block_idx_first_scheduled_token is not None and num_computed_tokens is not None
        count = block_idx_last_scheduled_token.long() - block_idx_first_scheduled_token.long()
        rest = block_size_to_align - num_computed_tokens.long() % block_size_to_align
        over = (sequences.lengths - rest) % block_size_to_align
        boundary = sequences.lengths - over - torch.where(over == 0, block_size_to_align, 0)
        for block in range(1, int(count.max()) + 1 if batch else 1):
            after = boundary - (count - block) * block_size_to_align
            place = block_idx_first_scheduled_token.long() + block - 1
            line = _pick(cache_indices, place.clamp(max=cache_indices.shape[1] - 1))
            written = known & (block <= count) & (sequences.lengths > 0)
            _store(conv_states, line, written, _window(wide, history, sequences, after, taps))
    newest = _window(wide, history, sequences, sequences.lengths, taps)
    _store(conv_states, last, known & (sequences.lengths > 0), newest)
    return y.to(conv_states.dtype).to(x.dtype).T


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
    """Convolve a few new tokens of each sequence with the history in its line; both change.

    Args:
        x: [B, D], a token each; [B, D, n]; or with `query_start_loc` [T, D]. Overwritten with the
            result, unless its dtype is not that of `conv_state`.
        conv_state: [lines, D, S], written in place.
        weight, bias, activation: as for `causal_conv1d_fn`.
        conv_state_indices: int32 [B], or [B, blocks] with the two arguments for prefix caching; i
            if not given. A sequence of `pad_slot_id`, or without tokens, changes nothing.
        num_accepted_tokens: int32 [B] for speculative decoding: the history begins so many columns
            less one later, and the line keeps one column of it less, then all the new tokens.
        query_start_loc: int32 [B + 1], with `max_query_len`, the most tokens of a sequence.
        block_idx_last_scheduled_token, initial_state_idx: int32 [B], the blocks that are written
            and read.
        validate_data: not used.

    Returns: as `x`.
    """
    width = check_width(weight)
    taps = width - 1
    work = x.to(conv_state.dtype)
    flat, most = flatten(work, query_start_loc, max_query_len)
    loc = query_start_loc
    if loc is None:
        loc = torch.arange(0, len(flat) + 1, most, device=x.device)
    conv_state_indices, loc = agree(conv_state_indices, loc)
    batch = len(loc) - 1
    sequences = Sequences.of(loc, len(flat))
    first = last = _lines(conv_state_indices, batch, x.device)
    if initial_state_idx is not None:
        assert conv_state_indices is not None and block_idx_last_scheduled_token is not None
        first = _pick(conv_state_indices, initial_state_idx)
        last = _pick(conv_state_indices, block_idx_last_scheduled_token)
    known = first != pad_slot_id
    skip = torch.zeros(batch, dtype=torch.int64, device=x.device)
    if num_accepted_tokens is not None:
        skip = (num_accepted_tokens[:batch].long() - 1).clamp(min=0)
    column = torch.arange(taps, device=x.device) + skip[:, None]
    state = conv_state[first.clamp(min=0).long()].transpose(1, 2)
    column = column.clamp(max=state.shape[1] - 1)
    history = state.gather(1, column[:, :, None].expand(-1, -1, state.shape[2])).float()
    history = torch.where(known[:, None, None], history, 0.0)
    wide = flat.float()
    y = _convolve(wide, weight, bias, history, sequences, activation).to(work.dtype)
    changed = known & (sequences.lengths > 0)
    if num_accepted_tokens is None:
        newest = _window(wide, history, sequences, sequences.lengths, taps)
        _store(conv_state, last, changed, newest)
    else:
        columns = taps - 1 + most
        newest = _window(wide, history, sequences, torch.ones_like(sequences.lengths), columns)
        kept = conv_state[last.clamp(min=0).long(), :, :columns].transpose(1, 2)
        inside = torch.arange(columns, device=x.device) < (taps - 1 + sequences.lengths)[:, None]
        _store(conv_state, last, changed, torch.where(inside[:, :, None], newest, kept.float()))
    y = torch.where(sequences.have(known)[:, None], y, flat)
    if work.dim() == 3:
        y = y.view(work.shape[0], work.shape[2], work.shape[1]).transpose(1, 2)
    work.copy_(y)
    return work.to(x.dtype)


def check_width(weight: torch.Tensor) -> int:
    """Return the number of taps; ValueError if vLLM's kernels have no such number."""
    width = weight.shape[1]
    if not 2 <= width <= 4:
        raise ValueError(f"causal_conv1d: {width} taps; from 2 to 4 are supported")
    return width


def flatten(
    x: torch.Tensor, query_start_loc: torch.Tensor | None, max_query_len: int
) -> tuple[torch.Tensor, int]:
    """Return the tokens [T, D] of what `causal_conv1d_update` takes, and the most of a sequence."""
    if query_start_loc is not None:
        return x, max_query_len
    if x.dim() == 2:
        return x, 1
    return x.transpose(1, 2).reshape(-1, x.shape[1]), x.shape[2]


def _lines(indices: torch.Tensor | None, batch: int, device: torch.device) -> torch.Tensor:
    if indices is None:
        return torch.arange(batch, dtype=torch.int32, device=device)
    return indices if indices.dim() == 1 else indices[:, 0]


def _pick(indices: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    return indices.gather(1, block.long()[:, None])[:, 0]


def _convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    history: torch.Tensor,
    sequences: Sequences,
    activation: bool | str | None,
) -> torch.Tensor:
    """Return float32 [T, D]; x is [T, D], history [B, W - 1, D], both float32."""
    taps = history.shape[1]
    token = torch.arange(len(x), device=x.device)
    y = torch.zeros_like(x) if bias is None else bias.float().expand(x.shape).clone()
    if not len(x):
        return y
    for tap in range(taps + 1):
        back = taps - tap
        place = (sequences.place + tap).clamp(max=taps - 1)
        old = history[sequences.owner, place]
        new = x[(token - back).clamp(min=0)]
        inside = (sequences.place >= back)[:, None]
        y += weight[:, tap].float() * torch.where(inside, new, old)
    return y * torch.sigmoid(y) if activation else y


def _window(
    x: torch.Tensor,
    history: torch.Tensor,
    sequences: Sequences,
    first: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """Return float32 [B, columns, D]: of each sequence's history and tokens, from `first` on."""
    taps = history.shape[1]
    place = first[:, None] + torch.arange(columns, device=x.device)
    row = torch.arange(len(history), device=x.device)[:, None]
    old = history[row, place.clamp(0, taps - 1)]
    if not len(x):
        return old
    new = x[(sequences.starts[:, None] + place - taps).clamp(0, len(x) - 1)]
    return torch.where((place >= taps)[:, :, None], new, old)


def _store(
    states: torch.Tensor, lines: torch.Tensor, chosen: torch.Tensor, values: torch.Tensor
) -> None:
    """Write [B, columns, D] into the first columns of the chosen sequences' lines."""
    chosen = chosen & (lines >= 0)
    values = values[chosen].transpose(1, 2).to(states.dtype)
    states[lines[chosen].long(), :, : values.shape[2]] = values
