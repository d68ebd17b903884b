"""The chunked gated delta rule, defined in plain torch."""

from __future__ import annotations

import torch

from ascend_runtime.gdn.chunks import CHUNK_SIZE
from ascend_runtime.reference.gdn.chunk_inputs import Sequences, check, cut
from ascend_runtime.reference.norm import l2norm_fwd


@torch.compiler.disable  # type: ignore[untyped-decorator]
def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    chunk_indices: torch.Tensor | None = None,
    chunk_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run sequences through a gated delta net, 64 tokens at a time.

    With a state S [V, K] for each value head, each token does S <- S * exp(g), then
    S <- S + beta * (v - S k) k^T, and its output is scale * S q. A chunk does that for its tokens
    at once, in float32.

    Args:
        q, k: [B, T, H, K], K at most 256, not float32; strides are free, here and below.
        v: [B, T, HV, V], HV a multiple of H; the value heads of a key head lie side by side.
        g: [B, T, HV], any float: the logarithm of a token's decay.
        beta: [B, T, HV], any float.
        scale: K ** -0.5 if not given.
        initial_state: [N, HV, V, K], any float; zeros if not given.
        output_final_state: whether the states are given back.
        cu_seqlens: [N + 1] integers, where in the T tokens of B = 1 each sequence begins; without
            it each of the B rows is a sequence. An empty sequence keeps its state.
        use_qk_l2norm_in_kernel: whether q and k are scaled to length 1 first.
        chunk_indices, chunk_offsets: [NT, 2] and [N + 1], see `ascend_runtime.gdn.GDNChunkMeta`;
            where one is not given, both are worked out.

    Returns: outputs [B, T, HV, V] of q's dtype, undefined for tokens of no sequence; and states
        [N, HV, V, K] in float32, or None.

    Raises AssertionError and ValueError for what is not as described.
    """
    check(q, k, v, g, beta, initial_state, cu_seqlens)
    sequences = cut(k, cu_seqlens, chunk_indices, chunk_offsets)
    if use_qk_l2norm_in_kernel:
        q, k = (l2norm_fwd(x, output_dtype=torch.float32) for x in (q, k))
    heads, values, keys = *v.shape[-2:], k.shape[-1]
    count = len(sequences.cu_seqlens) - 1
    state = k.new_zeros(count, heads, values, keys, dtype=torch.float32)
    if initial_state is not None:
        state.copy_(initial_state)

    tokens, inside = _tokens(sequences)
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    q, k, v, g, beta = (
        _gather(x.flatten(0, 1), tokens, inside, heads)
        for x in (q, k, v, g[..., None], beta[..., None])
    )
    o = _rule(q, k, v, g, beta, state, sequences, k.shape[-1] ** -0.5 if scale is None else scale)
    out.flatten(0, 1)[tokens[inside]] = o.transpose(1, 2)[inside].to(out.dtype)
    return out, state if output_final_state else None


def _tokens(sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token at each place of each chunk, [NT, 64], and whether there is one."""
    sequence, number = sequences.chunk_indices.long().unbind(1)
    starts = sequences.cu_seqlens.long()
    place = torch.arange(CHUNK_SIZE, device=starts.device)
    tokens = starts[sequence, None] + number[:, None] * CHUNK_SIZE + place
    inside = tokens < starts[sequence + 1, None]
    return tokens.where(inside, 0), inside


def _gather(
    x: torch.Tensor, tokens: torch.Tensor, inside: torch.Tensor, heads: int
) -> torch.Tensor:
    """Return [NT, HV, 64, D] of x [tokens, heads of x, D], 0 where there is no token."""
    chunks = x[tokens].float() * inside[:, :, None, None]
    return chunks.repeat_interleave(heads // x.shape[1], dim=2).transpose(1, 2)


def _rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    sequences: Sequences,
    scale: float,
) -> torch.Tensor:
    """Return the outputs [NT, HV, 64, V] of chunks, and carry `state` [N, HV, V, K] on in place."""
    gate = g.cumsum(2)
    lower = torch.ones(CHUNK_SIZE, CHUNK_SIZE, dtype=torch.bool, device=g.device).tril()
    # Selected before the exponential, which else overflows above the diagonal.
    decay = (gate - gate.mT).where(lower, 0).exp() * lower
    # What each token writes depends on what those before it in the chunk have written: a
    # triangular system of equations for the new values, in which the state is still to be put in.
    # Its diagonal is taken for ones.
    system = beta * (k @ k.mT) * decay
    right = torch.cat([beta * gate.exp() * k, beta * v], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    w, u = solved.split([k.shape[-1], v.shape[-1]], dim=-1)

    # The places that a short chunk lacks have gates of 0, so the last sum is the chunk's own.
    last = gate[:, :, -1:]
    left = (last - gate).exp()
    news, states = u.clone(), k.new_zeros(len(k), *state.shape[1:])
    offsets = sequences.chunk_offsets.cpu().long()
    counts = offsets.diff()
    for number in range(int(counts.max()) if len(counts) else 0):
        at = (counts > number).nonzero()[:, 0]
        chunk, at = (offsets[at] + number).to(k.device), at.to(k.device)
        before = state[at]
        states[chunk] = before
        news[chunk] -= w[chunk] @ before.mT
        state[at] = before * last[chunk].exp() + (news[chunk] * left[chunk]).mT @ k[chunk]
    o: torch.Tensor = q @ states.mT * gate.exp() + (q @ k.mT * decay) @ news
    return scale * o
