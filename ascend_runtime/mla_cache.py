"""How the cache of a sparse MLA layer divides into parts.

Each token has, for each head, a latent part, a rotary part and the key of the indexer. With C8 the
indexer's keys are 8-bit, and a fourth part holds one scale for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ratios = tuple[float, float, float, float | None]


def spec_bytes(spec: Any, num_blocks: int) -> tuple[int, ...]:
    """Return `split_bytes` of that many blocks of an MLAAttentionSpec."""
    return split_bytes(num_blocks * spec.block_size * spec.num_kv_heads, *_sizes(spec))


def spec_ratios(spec: Any) -> Ratios:
    """Return `split_ratios` of an MLAAttentionSpec."""
    return split_ratios(*_sizes(spec))


def _sizes(spec: Any) -> tuple[Sequence[int], int, bool, int, int]:
    """Dimensions, bytes of an element, whether C8, and bytes of a C8 key and of its scale."""
    return (
        spec.sparse_head_dim,
        spec.dtype.itemsize,
        spec.cache_sparse_c8,
        spec.c8_k_cache_dtype.itemsize,
        spec.c8_k_scale_cache_dtype.itemsize,
    )


def split_bytes(
    tokens: int, dims: Sequence[int], itemsize: int, c8: bool, k_itemsize: int, scale_itemsize: int
) -> tuple[int, ...]:
    """Return the exact bytes of each part: three, or four with C8.

    `tokens` counts every head of every token. `dims` are the elements of the latent part, the
    rotary part and the indexer's key; `itemsize` is the bytes of an element, with C8 `k_itemsize`
    those of the indexer's key and `scale_itemsize` those of its scale.
    """
    latent, rotary, index = _three(dims)
    per_token = [latent * itemsize, rotary * itemsize, index * (k_itemsize if c8 else itemsize)]
    if c8:
        per_token.append(scale_itemsize)
    return tuple(tokens * size for size in per_token)


def split_ratios(
    dims: Sequence[int], itemsize: int, c8: bool, k_itemsize: int, scale_itemsize: int
) -> Ratios:
    """Return, for each part, how many times it goes into the whole; None for scales without C8.

    In units of `itemsize`: with C8 the scale counts as one, and so must be as large (ValueError
    otherwise), and the indexer's key as its 8-bit elements, rounded down. Dividing bytes by these
    floats may lose one: `split_bytes` does not.
    """
    latent, rotary, index = _three(dims)
    if not c8:
        total = latent + rotary + index
        return total / latent, total / rotary, total / index, None
    if scale_itemsize != itemsize:
        raise ValueError(
            f"the ratios of a C8 cache are told in elements of {itemsize} bytes, but a scale has"
            f" {scale_itemsize}: use sparse_cache_bytes, which is exact"
        )
    if itemsize % k_itemsize:
        raise ValueError(f"keys of {k_itemsize} bytes do not divide elements of {itemsize}")
    index //= itemsize // k_itemsize
    total = latent + rotary + index + 1
    return total / latent, total / rotary, total / index, float(total)


def _three(dims: Sequence[int] | None) -> tuple[int, int, int]:
    if dims is None or len(dims) != 3 or min(dims) <= 0:
        raise ValueError(
            "sparse_head_dim must name the latent, the rotary and the indexer's dimension,"
            f" not {dims}"
        )
    latent, rotary, index = dims
    return latent, rotary, index
