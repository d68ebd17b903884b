"""vLLM's edited kernel that copies Mamba states: the same bytes as the definition's."""

from __future__ import annotations

import importlib

import interpreter
import pytest
import torch

from ascend_runtime import mamba_copy
from ascend_runtime.reference import mamba_copy as reference

GAP = 16


@pytest.fixture
def copy(vllm_site):
    return importlib.import_module("vllm.v1.worker.mamba_utils").batch_memcpy


@pytest.fixture(params=["npu", "cuda"])
def kind(request, monkeypatch):
    """The device that chunks and launches are for; both run here."""
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", request.param)
    return request.param


def both(copy, sources: list[torch.Tensor], sizes: list[int]) -> tuple[list, list]:
    """Copy from each source to a target of its own, in the kernel and as defined."""
    made = []
    for function in (copy, reference.batch_memcpy):
        targets = [torch.full((size + GAP,), 255, dtype=torch.uint8) for size in sizes]
        addresses = [torch.tensor([one.data_ptr() for one in side]) for side in (sources, targets)]
        with interpreter.ascend_grids():
            function(*addresses, torch.tensor(sizes, dtype=torch.int32))
        made.append([target.tolist() for target in targets])
    return made[0], made[1]


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 255, (size,), dtype=torch.uint8)


@pytest.mark.parametrize(
    "sizes",
    [
        [0],
        [1],
        [1023, 1024, 1025],
        [8191, 8192, 8193],
        [24576, 0, 3, 262144],
        [7] * 300,
    ],
    ids=str,
)
def test_every_byte_and_no_other(copy, kind, sizes):
    sources = [noise(size + GAP) for size in sizes]
    mine, wanted = both(copy, sources, sizes)
    assert mine == wanted


def test_addresses_that_are_aligned_to_nothing(copy, kind):
    block = noise(5000)
    mine, wanted = both(copy, [block[offset:] for offset in (1, 3, 7)], [1025, 4090, 33])
    assert mine == wanted


@pytest.mark.parametrize("size", [96, 4096, 20000])
@pytest.mark.parametrize("shift", [1, 96])
def test_a_state_that_is_moved_down_within_itself(copy, kind, size, shift):
    states = [noise(size + shift)]
    states.append(states[0].clone())
    for state, function in zip(states, (copy, reference.batch_memcpy), strict=True):
        addresses = [torch.tensor([one.data_ptr()]) for one in (state[shift:], state)]
        function(*addresses, torch.tensor([size], dtype=torch.int32))
    assert states[0].equal(states[1])


def test_more_copies_than_a_launch_has_programs(copy, monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setattr(mamba_copy, "_PROGRAMS", 16)
    sizes = [3 + row % 5 for row in range(40)]
    mine, wanted = both(copy, [noise(size) for size in sizes], sizes)
    assert mine == wanted


def test_the_first_batch_that_no_launch_takes(copy, monkeypatch):
    """1024 requests of Qwen3-Next, with 36 layers of two states each, are 73728 copies."""
    count = 1024 * 36 * 2
    nothing = torch.zeros(count, dtype=torch.int64)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    with interpreter.launch_sizes() as launches:
        copy(nothing, nothing, nothing.int())
    assert launches == [32768, 32768, 8192]
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    with interpreter.ascend_grids(), pytest.raises(interpreter.GridTooLarge):
        copy(nothing, nothing, nothing.int())
