"""Memory calls go to torch.npu while they must, and to torch.accelerator otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ascend_runtime import accel_mem

CALLS = [
    ("empty_cache", (), None),
    ("memory_stats", (None,), {"allocated_bytes.all.peak": 7}),
    ("memory_stats", (3,), {"allocated_bytes.all.peak": 7}),
    ("memory_reserved", (torch.device("cpu"),), 11),
    ("reset_peak_memory_stats", ("npu:1",), None),
]


class Recorder(SimpleNamespace):
    """A module of which every function notes its arguments."""

    def __init__(self) -> None:
        super().__init__(seen=[])
        for name, _, answer in CALLS:
            setattr(self, name, lambda *a, _n=name, _r=answer: (self.seen.append((_n, a)), _r)[1])


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    """Both modules, and an allocator that does not answer."""
    recorders = {"npu": Recorder(), "accelerator": Recorder()}
    for name, recorder in recorders.items():
        monkeypatch.setattr(torch, name, recorder, raising=False)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", refuse)
    return recorders


def refuse() -> bool:
    raise RuntimeError("Allocator for npu is not a DeviceAllocator.")


@pytest.mark.parametrize(("name", "arguments", "answer"), CALLS)
def test_npu_whose_allocator_does_not_answer(modules, name, arguments, answer) -> None:
    assert getattr(accel_mem, name)(*arguments) == answer
    assert modules["npu"].seen == [(name, arguments)]
    assert modules["accelerator"].seen == []


@pytest.mark.parametrize(("name", "arguments", "answer"), CALLS)
@pytest.mark.parametrize("initialized", [True, False])
def test_newer_torch_npu_switches_it_off(
    modules, monkeypatch, name, arguments, answer, initialized
) -> None:
    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", lambda: initialized)
    assert getattr(accel_mem, name)(*arguments) == answer
    assert modules["accelerator"].seen == [(name, arguments)]
    assert modules["npu"].seen == []


@pytest.mark.parametrize(("name", "arguments", "answer"), CALLS)
def test_other_devices(modules, monkeypatch, name, arguments, answer) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    assert getattr(accel_mem, name)(*arguments) == answer
    assert modules["accelerator"].seen == [(name, arguments)]


def test_torch_without_the_question(modules, monkeypatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_isAllocatorInitialized")
    accel_mem.empty_cache()
    assert modules["npu"].seen == [("empty_cache", ())]


def test_functions_are_looked_up_at_each_call(modules) -> None:
    """As during graph capture, when `torch.npu.empty_cache` is a no-op for a while."""
    accel_mem.empty_cache()
    modules["npu"].empty_cache = lambda: modules["npu"].seen.append("replaced")
    accel_mem.empty_cache()
    assert modules["npu"].seen == [("empty_cache", ()), "replaced"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a torch without accelerator")
def test_without_any_accelerator_the_error_is_that_of_torch(monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cpu")
    for call in (accel_mem.empty_cache, accel_mem.memory_stats, accel_mem.memory_reserved):
        with pytest.raises(RuntimeError, match="Cannot access accelerator device"):
            call()
