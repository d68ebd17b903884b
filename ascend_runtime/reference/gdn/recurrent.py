"""The recurrent gated delta rule, token by token on states in a cache, defined in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from ascend_runtime.reference.gdn.gating import decay, gating
from ascend_runtime.reference.gdn.recurrent_inputs import Recurrence, recurrence, unpack
from ascend_runtime.reference.norm import l2norm_fwd


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
    """Run sequences through a gated delta net, a token at a time.

    With a state S [V, K] for each value head, each token does S <- S * exp(g), then
    S <- S + beta * (v - S k) k^T, and its output is scale * S q; in float32.

    Args:
        q, k: [B, T, H, K], any float.
        v: [B, T, HV, V], HV a multiple of H; the value heads of a key head lie side by side.
        g: [B, T, HV], any float: the logarithm of a token's decay.
        beta: [B, T, HV], or [B, T, HV, V] for one of each value; any float.
        scale: of the outputs.
        initial_state: [lines, HV, V, K], any float and strides: a cache of states.
        inplace_final_state: whether states are written to that cache.
        cu_seqlens: [N + 1] integers, where in the T tokens of B = 1 each sequence begins; without
            it each of the B rows is a sequence. An empty sequence writes nothing.
        ssm_state_indices: integers [N], the line of a sequence, read and written; or [N, S]: the
            first one is read, and each token writes its own. From a line below 0 nothing is
            read: the outputs of the sequence are 0, and it writes nothing; to such a line nothing
            is written. Without it a sequence starts from the line of the number of its first
            token, and states cannot be written in place.
        num_accepted_tokens: integers [N], above 0: a sequence starts from the line of this token,
            counted from 1, not from the first one.
        use_qk_l2norm_in_kernel: whether q and k are scaled to length 1 first.

    Returns: outputs [B, T, HV, V] of q's dtype, undefined for tokens of no sequence; and
        `initial_state`, or not in place the states after each token, [B * T, HV, V, K] of its
        dtype, undefined where nothing is written.

    Raises ValueError for shapes that do not fit each other, and for states that are to be written
        in place without `ssm_state_indices`.
    """
    out = q.new_zeros(v.shape)
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
    """Do what a launch of vLLM's kernel of `fused_recurrent_fwd` does.

    Args:
        q, k, v, beta, h0, cu_seqlens, ssm_state_indices, num_accepted_tokens, scale: as there.
        g: as there, or if `IS_KDA` [B, T, HV, K]: each key column has its own decay.
        o: as v, any float; the outputs are written to it.
        ht: h0 itself, or if not `INPLACE_FINAL_STATE` [B * T, HV, V, K]: gets the states.

    Sizes and strides are the tensors' own, whatever is said of them in other arguments.
    """
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
    """Decode a token of each of B sequences, from q, k and v as the convolution leaves them.

    Args:
        mixed_qkv: [B, 2 * H * K + HV * V], any float: all q, all k, all v; rows may be strided.
        a, b, A_log, dt_bias: as for `gating`, with T = B; rows may be strided.
        scale, initial_state, use_qk_l2norm_in_kernel: as for `fused_recurrent_fwd`.
        out: contiguous [B, 1, HV, V], any float; is written and returned.
        ssm_state_indices: integers [B]. The output of a line below 0 is 0.

    Returns: `out` and `initial_state`, which is written in place.

    Raises ValueError for shapes that do not fit, strides and devices other than said.
    """
    q, k, v = unpack(mixed_qkv, a, b, A_log, dt_bias, initial_state, out, ssm_state_indices)
    g, beta = gating(A_log, a, b, dt_bias)
    what = recurrence(
        q,
        k,
        v,
        g[0, :, None],
        beta[0, :, None],
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
    """Do `fused_recurrent_fwd` with the gates that `gating` gives, both in float32.

    Args:
        A_log: [HV], any float.
        a: [B * T, HV] or [B, T, HV], any float; if `is_kda` with a last dimension of K.
        b: [B * T, HV] or [B, T, HV], any float.
        dt_bias: [HV], or if `is_kda` [HV, K]; any float.
        beta, threshold: of the softplus.
        scale: above 0 (AssertionError), K ** -0.5 if not given.
        initial_state: must be given.
        is_kda: whether each key column has its own decay.
        q, k, v, inplace_final_state, cu_seqlens, ssm_state_indices, num_accepted_tokens,
            use_qk_l2norm_in_kernel: as there. So are results and errors.
    """
    if initial_state is None:
        raise ValueError("initial_state must be given")
    scale = scale_of(k, scale)
    tokens, heads = k.shape[:2], v.shape[2]
    A = A_log.float()[:, None] if is_kda else A_log
    a = a.reshape(*tokens, heads, *([k.shape[-1]] if is_kda else []))
    g = decay(A, a, dt_bias.view(a.shape[2:]), beta, threshold)
    strength = b.reshape(*tokens, heads).float().sigmoid()
    out = q.new_zeros(v.shape)
    what = recurrence(
        q,
        k,
        v,
        g,
        strength,
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


def scale_of(k: torch.Tensor, scale: float | None) -> float:
    """Return the scale of a call."""
    if scale is None:
        return float(k.shape[-1] ** -0.5)
    assert scale > 0, "scale must be positive"
    return scale


def _run(what: Recurrence, out: torch.Tensor) -> None:
    """Write the outputs [.., HV, V] of all sequences, and their states."""
    out = out.view(-1, *out.shape[-2:])
    q, k, v = what.q.float(), what.k.float(), what.v.float()
    if what.normalise:
        q, k = l2norm_fwd(q), l2norm_fwd(k)
    shared = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(shared, 1) for x in (q * what.scale, k))
    decays, strengths = (
        x[..., None] if x.dim() == 2 else x for x in (what.g.float().exp(), what.beta.float())
    )

    first, lengths = _bounds(what, v.device)
    start, targets = _lines(what, first)
    live = ((start >= 0) & (lengths > 0)).nonzero()[:, 0]
    dead = (start < 0).nonzero()[:, 0]
    state = what.state[start[live]].float()
    for step in range(int(lengths.max()) if len(lengths) else 0):
        skipped = dead[lengths[dead] > step]
        out[first[skipped] + step] = 0
        going = lengths[live] > step
        live, state = live[going], state[going]
        token = first[live] + step
        state = state * decays[token, :, None]
        key = k[token][..., None]
        new = (v[token] - (state @ key)[..., 0]) * strengths[token]
        state = state + new[..., None] * key.mT
        out[token] = (state @ q[token][..., None])[..., 0].to(out.dtype)
        if what.in_place:
            target = targets(live, step)
            wanted = target >= 0
            what.final[target[wanted]] = state[wanted].to(what.final.dtype)
        else:
            what.final[token] = state.to(what.final.dtype)


def _bounds(what: Recurrence, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first token of each sequence, and its length."""
    if what.cu_seqlens is not None:
        bounds = what.cu_seqlens.long()
        return bounds[:-1], bounds.diff()
    first = torch.arange(what.count, device=device) * what.length
    return first, torch.full_like(first, what.length)


def _lines(what: Recurrence, first: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return the lines that sequences start from, and a function to ask where states go."""
    if what.lines is None:
        return first, None
    lines = what.lines.long()
    if lines.dim() == 1:
        return lines, lambda sequences, step: lines[sequences]
    start = torch.zeros_like(first)
    if what.accepted is not None:
        start = what.accepted[: what.count].long().clamp(min=1) - 1
    columns = lines.shape[1]

    def targets(sequences: torch.Tensor, step: int) -> torch.Tensor:
        if step < columns:
            return lines[sequences, step]
        return torch.full_like(sequences, -1)

    return lines.gather(1, start[:, None])[:, 0], targets
