"""How the cache of a sparse MLA layer divides."""

from __future__ import annotations

import pytest

from ascend_runtime.mla_cache import split_bytes, split_ratios

DIMS = (512, 64, 128)
BLOCK = 128


def test_bytes_of_a_block() -> None:
    assert split_bytes(BLOCK, DIMS, 2, False, 1, 2) == (131072, 16384, 32768)
    assert split_bytes(BLOCK, DIMS, 2, True, 1, 2) == (131072, 16384, 16384, 256)
    assert sum(split_bytes(BLOCK, DIMS, 2, False, 1, 2)) == 180224
    assert sum(split_bytes(BLOCK, DIMS, 2, True, 1, 2)) == 164096


def test_scales_of_another_size() -> None:
    assert split_bytes(BLOCK, DIMS, 2, True, 1, 4) == (131072, 16384, 16384, 512)


def test_ratios() -> None:
    assert split_ratios(DIMS, 2, False, 1, 2) == (1.375, 11.0, 5.5, None)
    assert split_ratios(DIMS, 2, True, 1, 2) == (1.251953125, 10.015625, 10.015625, 641.0)


@pytest.mark.parametrize("dims", [(512, 64, 96), (384, 96, 160), (7, 3, 5)])
@pytest.mark.parametrize("c8", [False, True])
def test_split_is_exact_where_ratios_lose_bytes(dims: tuple[int, ...], c8: bool) -> None:
    """What the caches of a page have to sum to, for every number of blocks."""
    token = sum(dims) * 2 if not c8 else dims[0] * 2 + dims[1] * 2 + dims[2] + 2
    for blocks in range(1, 3001):
        parts = split_bytes(blocks * BLOCK, dims, 2, c8, 1, 2)
        assert sum(parts) == blocks * BLOCK * token
        assert [part / (blocks * BLOCK) for part in parts[:2]] == [dims[0] * 2, dims[1] * 2]


def test_dividing_by_ratios_does_lose_bytes() -> None:
    """Why there is an exact way."""
    size = 11 * BLOCK * (384 + 96 + 160) * 2
    latent, rotary, index, _ = split_ratios((384, 96, 160), 2, False, 1, 2)
    assert sum(int(size // ratio) for ratio in (latent, rotary, index)) == size - 2


@pytest.mark.parametrize("dims", [None, (), (512, 64), (1, 2, 3, 4), (512, 64, 0)])
def test_three_dimensions_are_needed(dims) -> None:
    with pytest.raises(ValueError, match="sparse_head_dim must name the latent"):
        split_bytes(BLOCK, dims, 2, False, 1, 2)
    with pytest.raises(ValueError, match="sparse_head_dim must name the latent"):
        split_ratios(dims, 2, False, 1, 2)


def test_ratios_want_scales_as_large_as_elements() -> None:
    with pytest.raises(ValueError, match="in elements of 2 bytes, but a scale has 4"):
        split_ratios(DIMS, 2, True, 1, 4)


def test_ratios_want_keys_that_divide_elements() -> None:
    with pytest.raises(ValueError, match="keys of 4 bytes do not divide elements of 2"):
        split_ratios(DIMS, 2, True, 4, 2)
