"""What the recurrent gated delta rule is given: checked, and brought to one form."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Recurrence:
    """The tokens of N sequences, T together, and where their states are.

    q, k: [T, H, K]; v: [T, HV, V]; g: [T, HV], or [T, HV, K]; beta: [T, HV], or [T, HV, V].
    state: [lines, HV, V, K], of any strides. lines: None (a sequence starts from the line of the
    number of its first token), [N], or [N, S]. cu_seqlens: [N + 1], or None: all are of `length`.
    accepted: [N] or None. final: as `state`, where states go; [T, HV, V, K] if not `in_place`.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    scale: float
    normalise: bool
    state: torch.Tensor
    final: torch.Tensor
    in_place: bool
    count: int
    length: int
    cu_seqlens: torch.Tensor | None
    lines: torch.Tensor | None
    accepted: torch.Tensor | None


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    final: torch.Tensor | None,
    in_place: bool,
    cu_seqlens: torch.Tensor | None,
    lines: torch.Tensor | None,
    accepted: torch.Tensor | None,
    normalise: bool,
) -> Recurrence:
    """Refuse what no kernel can do, and put all tokens in one dimension.

    Raises ValueError for shapes that do not fit each other, and for states that are to be written
    in place without a word on where.
    """
    (batch, length, key_heads, keys), (heads, values) = k.shape, v.shape[2:]
    if heads % key_heads:
        raise ValueError(f"{heads} value heads cannot share {key_heads} key heads evenly")
    if cu_seqlens is not None and batch != 1:
        raise ValueError(f"with cu_seqlens the batch size must be 1, not {batch}")
    if in_place and lines is None:
        raise ValueError("states cannot be written in place without ssm_state_indices")
    if accepted is not None and lines is None:
        raise ValueError("num_accepted_tokens needs ssm_state_indices")
    if initial_state.shape[1:] != (heads, values, keys):
        wanted = f"[lines, {heads}, {values}, {keys}]"
        raise ValueError(f"the states must be {wanted}, not {list(initial_state.shape)}")
    count = batch if cu_seqlens is None else len(cu_seqlens) - 1
    if final is None and not in_place:
        final = initial_state.new_empty(batch * length, heads, values, keys)
    return Recurrence(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        g.flatten(0, 1),
        beta.flatten(0, 1),
        scale,
        normalise,
        initial_state,
        initial_state if final is None else final,
        in_place,
        count,
        length,
        cu_seqlens,
        None if lines is None else lines[:count],
        accepted,
    )


def unpack(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    lines: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k [B, 1, H, K] and v [B, 1, HV, V] of a packed decode, views of `mixed_qkv`.

    Refuses with ValueError what vLLM's function does.
    """

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"packed decode: {what}")

    for name, tensor, dims in (
        ("mixed_qkv", mixed_qkv, 2),
        ("a", a, 2),
        ("b", b, 2),
        ("A_log", A_log, 1),
        ("dt_bias", dt_bias, 1),
        ("ssm_state_indices", lines, 1),
        ("initial_state", initial_state, 4),
    ):
        need(tensor.dim() == dims, f"{name} must have {dims} dimensions, not {tensor.dim()}")
        need(tensor.device == mixed_qkv.device, f"{name} is on another device than mixed_qkv")
        if tensor is not lines:
            need(tensor.stride(-1) == 1, f"{name} must be contiguous in its last dimension")
    need(out.is_contiguous(), "out must be contiguous")
    need(out.device == mixed_qkv.device, "out is on another device than mixed_qkv")
    rows, columns = mixed_qkv.shape
    heads, values, keys = initial_state.shape[1:]
    for name, tensor, shape in (
        ("a", a, (rows, heads)),
        ("b", b, (rows, heads)),
        ("A_log", A_log, (heads,)),
        ("dt_bias", dt_bias, (heads,)),
        ("ssm_state_indices", lines, (rows,)),
        ("out", out, (rows, 1, heads, values)),
    ):
        need(tensor.shape == shape, f"{name} must be {list(shape)}, not {list(tensor.shape)}")
    key_heads, rest = divmod(columns - heads * values, 2 * keys)
    fits = key_heads > 0 and rest == 0 and heads % key_heads == 0
    need(fits, f"{columns} columns of mixed_qkv do not fit states {list(initial_state.shape)}")
    sizes = [key_heads * keys, key_heads * keys, heads * values]
    q, k, v = torch.split(mixed_qkv, sizes, 1)
    q, k = (x.view(rows, 1, key_heads, keys) for x in (q, k))
    return q, k, v.view(rows, 1, heads, values)
