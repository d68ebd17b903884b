"""What Qwen3-Next does between the projection and the attention, defined in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def split_qkv_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    gate: bool,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> Parts:
    """Split a projection into q, k, v and the gate; normalise and rotate the heads of q and k.

    With H heads, G heads of k and v, and D = `head_dim`, `qkv` is [T, (H + 2 * G) * D]: all q,
    all k, all v; with a gate [T, (2 * H + 2 * G) * D]: of each head its q, then its gate, then all
    k, all v. A head x of q or k becomes x / sqrt(mean(x^2) + eps) * (1 + weight); of that the first
    R numbers are halves a, b, which become a * cos - b * sin, b * cos + a * sin.

    A token with three positions (time, height, width) takes each of its R / 2 angles from one of
    them. With `mrope_section` (t, h, w) the first t are of the first, the next h of the second, the
    others of the third. Interleaved, angle i is of the second if i % 3 is 1 and i < 3 * h, of the
    third if i % 3 is 2 and i < 3 * w, else of the first.

    The roundings are those of vLLM's GemmaRMSNorm and of its rotary embeddings' `forward_native`:
    the norm is computed in float32 and rounded to the dtype of `qkv`; in that dtype are cos and
    sin, each product, and their sums. So the bits are those of the two, run one after the other.

    Args:
        qkv: see above, any float; may be strided.
        q_weight, k_weight: [D], any float.
        cos_sin_cache: [positions, R], R even and at most D: cos, then sin; any float.
        positions: [T], or [3, T] with `mrope_section`; int32 or int64.
        mrope_section: three numbers with the sum R / 2, or none.

    Returns: q [T, H * D], k and v [T, G * D], and the gate [T, H * D] or None: contiguous, of the
    dtype of `qkv`, and no views of it.

    Raises ValueError if the shapes do not go together.
    """
    sizes = (num_heads, num_kv_heads, head_dim)
    check_shapes(qkv, cos_sin_cache, positions, *sizes, gate, mrope_section)
    tokens, of_q, of_kv = len(qkv), num_heads * head_dim, num_kv_heads * head_dim
    q, k, v = torch.split(qkv, [of_q * (1 + gate), of_kv, of_kv], dim=1)
    q = q.view(tokens, num_heads, (1 + gate) * head_dim)
    angles = cos_sin_cache[positions].to(qkv.dtype)
    if positions.dim() == 2:
        angles = _of_each_axis(angles, mrope_section, mrope_interleaved)
    cos, sin = angles[:, None].chunk(2, dim=-1)
    return (
        _norm_rope(q[..., :head_dim], q_weight, cos, sin, eps),
        _norm_rope(k.view(tokens, num_kv_heads, head_dim), k_weight, cos, sin, eps),
        v.clone(memory_format=torch.contiguous_format),
        q[..., head_dim:].reshape(tokens, of_q) if gate else None,
    )


def check_shapes(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    gate: bool,
    mrope_section: Sequence[int],
) -> None:
    """Raise what `split_qkv_norm_rope` says."""
    width = (num_heads * (1 + gate) + 2 * num_kv_heads) * head_dim
    if qkv.dim() != 2 or qkv.size(1) != width:
        raise ValueError(f"split_qkv_norm_rope: qkv is {tuple(qkv.shape)}, not [T, {width}]")
    rotary = cos_sin_cache.size(1)
    if rotary % 2 or rotary > head_dim:
        raise ValueError(f"split_qkv_norm_rope: {rotary} of {head_dim} numbers cannot be rotated")
    tokens = len(qkv)
    if positions.dim() == 1 and positions.shape == (tokens,):
        return
    if positions.shape != (3, tokens):
        shape = tuple(positions.shape)
        raise ValueError(f"split_qkv_norm_rope: {shape} are no positions of {tokens} tokens")
    if len(mrope_section) != 3 or sum(mrope_section) * 2 != rotary:
        raise ValueError(f"split_qkv_norm_rope: {mrope_section} are no sections of {rotary // 2}")


def _of_each_axis(angles: torch.Tensor, section: Sequence[int], interleaved: bool) -> torch.Tensor:
    """Take each angle of [3, T, R] from the position that it is of; returns [T, R]."""
    time, height, width = section
    angle = torch.arange(time + height + width, device=angles.device)
    if interleaved:
        second = (angle % 3 == 1) & (angle < 3 * height)
        third = (angle % 3 == 2) & (angle < 3 * width)
    else:
        second = (angle >= time) & (angle < time + height)
        third = angle >= time + height
    second, third = second.repeat(2), third.repeat(2)
    return torch.where(second, angles[1], torch.where(third, angles[2], angles[0]))


def _norm_rope(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """Do the heads of [T, heads, D], with angles [T, 1, R / 2]; returns [T, heads * D]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    heads = (wide * (1.0 + weight.float())).to(x.dtype)
    half = cos.size(-1)
    a, b, rest = torch.split(heads, [half, half, heads.size(-1) - 2 * half], dim=-1)
    rotated = (a * cos - b * sin, b * cos + a * sin, rest)
    return torch.cat(rotated, dim=-1).flatten(1)
