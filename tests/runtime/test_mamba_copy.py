"""Chunks and launches of the copies of Mamba states."""

from __future__ import annotations

import pytest

from ascend_runtime import mamba_copy


@pytest.mark.parametrize(("kind", "size"), [("npu", 8192), ("cuda", 1024), ("cpu", 1024)])
def test_size_of_a_chunk(monkeypatch, kind: str, size: int) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", kind)
    assert mamba_copy.block_size() == size


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(0, [0]), (1, [1]), (32768, [32768]), (32769, [32768, 1]), (98304, [32768] * 3)],
)
def test_launches_on_an_npu(monkeypatch, batch: int, sizes: list[int]) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    parts = mamba_copy.launches(batch)
    assert [part.stop - part.start for part in parts] == sizes
    assert [i for part in parts for i in range(batch)[part]] == list(range(batch))


def test_one_launch_elsewhere(monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    assert mamba_copy.launches(98304) == [slice(0, 98304)]
