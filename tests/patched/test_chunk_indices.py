"""Chunks of gated delta nets are numbered by their sequences, empty ones included."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace

import pytest
import torch
from patched_kit import pristine
from vllm.model_executor.layers.fla.ops import index

CDIV = SimpleNamespace(cdiv=lambda a, b: (a + b - 1) // b)


@pytest.fixture(scope="module")
def upstream(base) -> ModuleType:
    module = pristine(base.root, "vllm/model_executor/layers/fla/ops/index.py")
    module.triton = CDIV
    return module


@pytest.fixture(autouse=True)
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "triton", CDIV)


def cumulated(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


@pytest.mark.parametrize(
    ("lengths", "indices"),
    [
        ([130, 0, 64], [[0, 0], [0, 1], [0, 2], [2, 0]]),
        ([0, 1], [[1, 0]]),
        ([0, 1, 3], [[1, 0], [2, 0]]),
        ([4, 8], [[0, 0], [1, 0]]),
        ([64, 65, 0], [[0, 0], [1, 0], [1, 1]]),
        ([0, 0, 200, 0, 1], [[2, 0], [2, 1], [2, 2], [2, 3], [4, 0]]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers(lengths, indices, dtype) -> None:
    found = index.prepare_chunk_indices(cumulated(lengths, dtype), 64)
    assert found.tolist() == indices
    assert found.dtype == dtype


def test_empty_batches() -> None:
    assert index.prepare_chunk_indices(cumulated([0, 0]), 64).shape == (0, 2)


def test_without_empty_sequences_it_is_upstreams(upstream) -> None:
    chance = random.Random(0)
    for _ in range(200):
        lengths = [chance.randint(1, 400) for _ in range(chance.randint(1, 9))]
        size = chance.choice([16, 32, 64])
        ours, theirs = (
            module.prepare_chunk_indices(cumulated(lengths), size) for module in (index, upstream)
        )
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype


def test_upstream_mixes_sequences_up(upstream) -> None:
    """What the edit is for."""
    found = upstream.prepare_chunk_indices(cumulated([130, 0, 64]), 64)
    assert found.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
