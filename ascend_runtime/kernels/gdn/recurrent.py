"""The recurrent gated delta rule by a Triton kernel."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.gdn.gating import gates
from ascend_runtime.kernels.launch import vector_grid
from ascend_runtime.reference.gdn.recurrent import scale_of
from ascend_runtime.reference.gdn.recurrent_inputs import Recurrence, recurrence, unpack

#: Elements of a tile of a state, and its rows at most.
_TILE: Final = 8192
_ROWS: Final = 64


@triton.jit(
    do_not_specialize=[
        "scale",
        "sequences",
        "length",
        "columns",
        "key_heads",
        "heads",
        "keys",
        "values",
        "q_stride",
        "k_stride",
        "v_stride",
        "state_stride",
        "final_stride",
        "line_stride",
        "line_step",
        "accepted_stride",
    ]
)
def _recurrent_kernel(
    q,
    k,
    v,
    g,
    beta,
    out,
    state,
    final,
    cu_seqlens,
    lines,
    accepted,
    scale,
    sequences,
    length,
    columns,
    key_heads,
    heads,
    keys,
    values,
    q_stride,
    k_stride,
    v_stride,
    state_stride,
    final_stride,
    line_stride,
    line_step,
    accepted_stride,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_LINES: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
    IN_PLACE: tl.constexpr,
    NORMALISE: tl.constexpr,
    DECAY_OF_KEYS: tl.constexpr,
    BETA_OF_VALUES: tl.constexpr,
):
    slices = tl.cdiv(values, VALUES)
    key = tl.arange(0, KEYS)
    is_key = key < keys
    for task in range(tl.program_id(0), sequences * heads * slices, tl.num_programs(0)):
        sequence = task // (heads * slices)
        head = task // slices - sequence * heads
        value = task % slices * VALUES + tl.arange(0, VALUES)
        is_value = value < values
        is_cell = is_value[:, None] & is_key[None, :]
        # Within a line; 32 bits are enough.
        cell = head * values * keys + value[:, None] * keys + key[None, :]
        key_head = head // (heads // key_heads) * keys

        start = sequence * length
        count = length
        if HAS_STARTS:
            start = tl.load(cu_seqlens + sequence).to(tl.int32)
            count = tl.load(cu_seqlens + sequence + 1).to(tl.int32) - start
        line = start.to(tl.int64)
        if HAS_LINES:
            column = 0
            if HAS_ACCEPTED:
                number = tl.load(accepted + sequence * accepted_stride).to(tl.int32)
                column = tl.maximum(number - 1, 0)
            line = tl.load(lines + sequence * line_stride + column * line_step).to(tl.int64)
        # Tokens that are to be worked on; the outputs of others are 0.
        worked = tl.where(line >= 0, count, 0)
        line = tl.where(worked > 0, line, 0)
        s = tl.load(state + line * state_stride + cell, mask=is_cell, other=0.0).to(tl.float32)

        for step in range(0, worked):
            token = (start + step).to(tl.int64)
            q_row = tl.load(q + token * q_stride + key_head + key, mask=is_key, other=0.0)
            k_row = tl.load(k + token * k_stride + key_head + key, mask=is_key, other=0.0)
            q_row = q_row.to(tl.float32)[None, :]
            k_row = k_row.to(tl.float32)[None, :]
            if NORMALISE:
                q_row *= tl.rsqrt(tl.sum(q_row * q_row, axis=1) + 1e-6)[:, None]
                k_row *= tl.rsqrt(tl.sum(k_row * k_row, axis=1) + 1e-6)[:, None]
            gate = token * heads + head
            if DECAY_OF_KEYS:
                decay = tl.load(g + gate * keys + key, mask=is_key, other=0.0).to(tl.float32)
            else:
                # A row of it: exponentials are for vectors.
                decay = tl.load(g + gate).to(tl.float32) + tl.zeros([KEYS], dtype=tl.float32)
            s *= tl.exp(decay)[None, :]
            new = tl.load(v + token * v_stride + head * values + value, mask=is_value, other=0.0)
            new = new.to(tl.float32) - tl.sum(s * k_row, axis=1)
            if BETA_OF_VALUES:
                strong = tl.load(beta + gate * values + value, mask=is_value, other=0.0)
            else:
                strong = tl.load(beta + gate)
            new *= strong.to(tl.float32)
            s += new[:, None] * k_row
            o = tl.sum(s * q_row, axis=1) * scale
            tl.store(out + gate * values + value, o.to(out.dtype.element_ty), mask=is_value)

            target = token
            if IN_PLACE:
                column = tl.minimum(step, columns - 1)
                at = lines + sequence * line_stride + column * line_step
                target = tl.where(step < columns, tl.load(at).to(tl.int64), -1)
            if target >= 0:
                place = final + target * final_stride + cell
                tl.store(place, s.to(final.dtype.element_ty), mask=is_cell)

        for step in range(worked, count):
            gate = (start + step).to(tl.int64) * heads + head
            zero = tl.zeros([VALUES], dtype=tl.float32).to(out.dtype.element_ty)
            tl.store(out + gate * values + value, zero, mask=is_value)


def _run(what: Recurrence, out: torch.Tensor) -> None:
    """Write the outputs [.., HV, V], contiguous, of all sequences, and their states."""
    (heads, values), (key_heads, keys) = what.v.shape[1:], what.k.shape[1:]
    q, k, v = (_rows(x) for x in (what.q, what.k, what.v))
    # A copy of the cache would get the states in place of it.
    if not _whole_lines(what.state, what.final):
        raise RuntimeError("a line of the states must be contiguous")
    lines, accepted = what.lines, what.accepted
    block = triton.next_power_of_2(keys)
    per_task = max(1, min(_ROWS, _TILE // block, triton.next_power_of_2(values)))
    columns, line_step = what.length, 0
    if lines is not None and lines.dim() == 2:
        columns, line_step = lines.shape[1], lines.stride(1)
    _recurrent_kernel[vector_grid(what.count * heads * triton.cdiv(values, per_task))](
        q,
        k,
        v,
        what.g.contiguous(),
        what.beta.contiguous(),
        out,
        what.state,
        what.final,
        q if what.cu_seqlens is None else what.cu_seqlens.contiguous(),
        q if lines is None else lines,
        q if accepted is None else accepted,
        float(what.scale),
        what.count,
        what.length,
        columns,
        key_heads,
        heads,
        keys,
        values,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        what.state.stride(0),
        what.final.stride(0),
        0 if lines is None else lines.stride(0),
        line_step,
        0 if accepted is None else accepted.stride(0),
        KEYS=block,
        VALUES=per_task,
        HAS_STARTS=what.cu_seqlens is not None,
        HAS_LINES=lines is not None,
        HAS_ACCEPTED=accepted is not None,
        IN_PLACE=what.in_place,
        NORMALISE=what.normalise,
        DECAY_OF_KEYS=what.g.dim() == 3,
        BETA_OF_VALUES=what.beta.dim() == 3,
    )


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x with contiguous rows: as it is wherever that is so."""
    return x if not len(x) or x[0].is_contiguous() else x.contiguous()


def fused_recurrent_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.fused_recurrent_fwd`.

    A line of states must be contiguous, though lines need not lie side by side (RuntimeError).
    """
    out = q.new_empty(v.shape)
    what = recurrence(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        None,
        inplace_final_state,
        cu_seqlens,
        ssm_state_indices,
        num_accepted_tokens,
        use_qk_l2norm_in_kernel,
    )
    _run(what, out)
    return out, what.final


def fused_recurrent_kernel(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    o: torch.Tensor,
    h0: torch.Tensor,
    ht: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    ssm_state_indices: torch.Tensor | None,
    num_accepted_tokens: torch.Tensor | None,
    scale: float,
    USE_QK_L2NORM_IN_KERNEL: bool,
    INPLACE_FINAL_STATE: bool,
    IS_KDA: bool,
    **_: Any,
) -> None:
    """See `ascend_runtime.reference.gdn.fused_recurrent_kernel`; lines as above."""
    if g.dim() != 3 + IS_KDA:
        raise ValueError(f"g must have {3 + IS_KDA} dimensions, not {g.dim()}")
    what = recurrence(
        q,
        k,
        v,
        g,
        beta,
        scale,
        h0,
        ht,
        INPLACE_FINAL_STATE,
        cu_seqlens,
        ssm_state_indices,
        num_accepted_tokens,
        USE_QK_L2NORM_IN_KERNEL,
    )
    _run(what, o)


def packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.packed_decode`; lines as above."""
    q, k, v = unpack(mixed_qkv, a, b, A_log, dt_bias, initial_state, out, ssm_state_indices)
    g, beta = gates(A_log, a, b, dt_bias, 1.0, 20.0, b.dtype)
    what = recurrence(
        q,
        k,
        v,
        g[:, None],
        beta[:, None],
        scale,
        initial_state,
        None,
        True,
        None,
        ssm_state_indices,
        None,
        use_qk_l2norm_in_kernel,
    )
    _run(what, out)
    return out, initial_state


def sigmoid_gating_update(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.sigmoid_gating_update`; lines as above."""
    if initial_state is None:
        raise ValueError("initial_state must be given")
    tokens, heads = k.shape[:2], v.shape[2]
    a, b = (x.flatten(0, 1) if x.dim() == 3 else x for x in (a, b))
    g, strength = gates(A_log, a, b, dt_bias, beta, threshold, torch.float32)
    return fused_recurrent_fwd(
        q,
        k,
        v,
        g.view(*tokens, heads),
        strength.view(*tokens, heads),
        scale_of(k, scale),
        initial_state,
        inplace_final_state,
        cu_seqlens,
        ssm_state_indices,
        num_accepted_tokens,
        use_qk_l2norm_in_kernel,
    )


def fused_recurrent_fwd_fits(*args: Any, **kwargs: Any) -> bool:
    """Whether each line of the states is contiguous."""
    return _whole_lines(_given("initial_state", 6, args, kwargs))


#: They are the seventh argument here too.
packed_decode_fits = fused_recurrent_fwd_fits


def fused_recurrent_kernel_fits(*, h0: torch.Tensor, ht: torch.Tensor, **_: Any) -> bool:
    """Whether each line of the states is contiguous."""
    return _whole_lines(h0, ht)


def sigmoid_gating_update_fits(*args: Any, **kwargs: Any) -> bool:
    """Whether a head has one decay for all its keys, and each line of the states is contiguous."""
    state = _given("initial_state", 10, args, kwargs)
    return not _given("is_kda", 16, args, kwargs) and (state is None or _whole_lines(state))


def _given(name: str, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _whole_lines(*caches: torch.Tensor) -> bool:
    return all(not len(cache) or cache[0].is_contiguous() for cache in caches)
