"""Norms of MiniMax-M2's queries and keys, with its rotation, defined in plain torch.

A norm is over all heads, of which a rank of a tensor-parallel group has some: the ranks add up
their mean squares. `all_reduce` does that: float32 [T, 2] -> the sum over the ranks, as vLLM's
`tensor_model_parallel_all_reduce`. It is called once, or not at all for one rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

AllReduce = Callable[[torch.Tensor], torch.Tensor]


def norm_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm queries and keys: x * rsqrt(mean square + eps) * weight, in float32, then rounded.

    The mean square of a token is the mean over the ranks of each rank's own.

    Args:
        q, k: [T, Q] and [T, K], any float, may be strided.
        q_weight, k_weight: [Q] and [K].
        q_eps, k_eps: are added to the mean squares.
        tp_world: number of ranks.
        all_reduce: see the module.

    Returns: as `q` and `k`, contiguous.
    """
    wide = _normed(q, k, q_weight, k_weight, q_eps, k_eps, tp_world, all_reduce)
    return wide[0].to(q.dtype), wide[1].to(k.dtype)


def fused_qkv_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_size: int,
    kv_size: int,
    head_dim: int,
    rotary_dim: int,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split packed projections, norm queries and keys as `norm_qk` does, and rotate their heads.

    Of each head the first R = `rotary_dim` elements are rotated as GPT-NeoX has it, in pairs
    (i, i + R/2): (x1 * cos - x2 * sin, x2 * cos + x1 * sin). All is in float32, and rounded once.

    Args:
        qkv: [T, q_size + 2 * kv_size], any float, rows may be strided.
        q_weight, k_weight: [q_size] and [kv_size].
        positions: [T], integers, rows of the cache.
        cos_sin_cache: [positions, R], any float: R/2 cosines, then R/2 sines.
        q_size, kv_size: elements of all heads of this rank, multiples of `head_dim`.
        head_dim, rotary_dim: elements of a head, and how many of them are rotated (even).
        q_eps, k_eps, tp_world, all_reduce: see `norm_qk`.

    Returns: q [T, q_size] and k [T, kv_size], contiguous, and v [T, kv_size], a view of `qkv`.

    Raises ValueError if `positions` is not one for each row.
    """
    check_positions(positions, qkv)
    q, k, v = torch.split(qkv, [q_size, kv_size, kv_size], dim=-1)
    wide = _normed(q, k, q_weight, k_weight, q_eps, k_eps, tp_world, all_reduce)
    cos, sin = cos_sin_cache[positions].float().chunk(2, dim=-1)
    q, k = (_rotated(x, cos[:, None], sin[:, None], head_dim, rotary_dim) for x in wide)
    return q.to(qkv.dtype), k.to(qkv.dtype), v


def check_positions(positions: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise ValueError if `positions` is not [T] for `rows` [T, N]."""
    if positions.shape != rows.shape[:1]:
        found = tuple(positions.shape)
        raise ValueError(f"fused_qkv_norm_rope: positions {found} for {rows.shape[0]} rows")


def _normed(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = q.float(), k.float()
    squares = torch.cat([x.square().mean(-1, keepdim=True) for x in (q, k)], -1)
    if tp_world > 1:
        squares = all_reduce(squares) / tp_world
    of_q, of_k = squares.chunk(2, dim=-1)
    return (
        q * torch.rsqrt(of_q + q_eps) * q_weight.float(),
        k * torch.rsqrt(of_k + k_eps) * k_weight.float(),
    )


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_dim: int, rotary_dim: int
) -> torch.Tensor:
    heads = x.view(len(x), x.shape[-1] // head_dim, head_dim)
    half = rotary_dim // 2
    first, second, rest = torch.split(heads, [half, half, head_dim - rotary_dim], -1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(turned, -1).flatten(1)
