"""PX1: memory calls go through `ascend_runtime.accel_mem`, everywhere but on other platforms."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from platform_kit import on_platform
from source_scan import uses
from vllm.utils import mem_utils
from vllm.utils.mem_utils import MemorySnapshot, memory_profiling

import ascend_runtime.accel_mem

NAMES = ("empty_cache", "memory_stats", "memory_reserved", "reset_peak_memory_stats")
REWRITTEN = {
    ("distributed/elastic_ep/elastic_execute.py", "empty_cache"): 1,
    ("distributed/parallel_state.py", "empty_cache"): 1,
    ("model_executor/layers/fused_moe/unquantized_fused_moe_method.py", "empty_cache"): 1,
    ("model_executor/layers/quantization/quark/quark_moe.py", "empty_cache"): 3,
    ("model_executor/layers/quantization/utils/fp8_utils.py", "empty_cache"): 1,
    ("model_executor/model_loader/bitsandbytes_loader.py", "empty_cache"): 1,
    ("model_executor/models/qwen3_next.py", "empty_cache"): 1,
    ("utils/mem_utils.py", "empty_cache"): 2,
    ("utils/mem_utils.py", "memory_reserved"): 1,
    ("utils/mem_utils.py", "memory_stats"): 1,
    ("utils/mem_utils.py", "reset_peak_memory_stats"): 1,
    ("v1/sample/ops/topk_topp_triton.py", "empty_cache"): 1,
    ("v1/worker/gpu/model_runner.py", "empty_cache"): 1,
    ("v1/worker/gpu_model_runner.py", "empty_cache"): 4,
    ("v1/worker/gpu_worker.py", "empty_cache"): 1,
    ("v1/worker/gpu_worker.py", "memory_stats"): 1,
}
LEFT = {("v1/worker/xpu_worker.py", "empty_cache"): 2}


def counted(root, prefix: str) -> Counter:
    """How often each file names each of the four functions of a module."""
    found = uses(root, (prefix,))
    return Counter(
        (use.file, name) for use in found for name in NAMES if use.name == f"{prefix}.{name}"
    )


def test_every_site_is_rewritten_and_no_other(installed, base) -> None:
    assert sum(REWRITTEN.values()) == 22
    assert counted(installed.site, "ascend_runtime.accel_mem") == REWRITTEN
    assert counted(installed.site, "torch.accelerator") == LEFT
    assert counted(base.root, "torch.accelerator") == {**REWRITTEN, **LEFT}


def test_other_calls_of_torch_accelerator_stay(installed, base) -> None:
    """Among them `max_memory_allocated` of the loader, `synchronize` and `device_count`."""

    def others(root) -> Counter:
        names = [u for u in uses(root, ("torch.accelerator",)) if "accelerator." in u.name]
        return Counter(u for u in names if u.name.rpartition(".")[2] not in NAMES)

    assert not others(base.root) - others(installed.site)
    (more,) = (others(installed.site) - others(base.root)).elements()  # of `device_values`
    assert (more.file, more.name) == (
        "distributed/eplb/eplb_state.py",
        "torch.accelerator.is_available",
    )
    assert any(use.name.endswith("max_memory_allocated") for use in others(base.root))


class Npu(SimpleNamespace):
    """A `torch.npu` that notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(seen=[])

    def empty_cache(self) -> None:
        self.seen.append(("empty_cache",))

    def memory_stats(self, device: object = None) -> dict[str, int]:
        self.seen.append(("memory_stats", device))
        return {"allocated_bytes.all.peak": 700}

    def memory_reserved(self, device: object = None) -> int:
        self.seen.append(("memory_reserved", device))
        return 900

    def reset_peak_memory_stats(self, device: object = None) -> None:
        self.seen.append(("reset_peak_memory_stats", device))


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch):
    fake = Npu()
    monkeypatch.setattr(torch, "npu", fake, raising=False)
    with on_platform("npu", mem_utils) as platform:
        platform.mem_get_info = lambda device: (3000, 10000)
        platform.is_integrated_gpu = lambda *a: False
        yield fake


def test_memory_snapshot(npu, monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    device = torch.device("cpu")
    monkeypatch.setattr(mem_utils, "get_memory_info", lambda *a: (3000, 10000), raising=False)
    snapshot = MemorySnapshot(device=device, auto_measure=False)
    snapshot.measure()
    assert (snapshot.torch_peak, snapshot.torch_memory) == (700, 900)
    assert (snapshot.free_memory, snapshot.total_memory) == (3000, 10000)
    assert npu.seen == [("memory_stats", device), ("memory_reserved", device)]


def test_memory_profiling(npu, monkeypatch) -> None:
    device = torch.device("cpu")
    snapshot = MemorySnapshot(device=device)
    npu.seen.clear()
    with memory_profiling(snapshot, weights_memory=1):
        assert npu.seen[:2] == [("empty_cache",), ("reset_peak_memory_stats", device)]
    assert npu.seen.count(("empty_cache",)) == 2


def test_graph_capture_replaces_the_new_callee_too(npu, monkeypatch) -> None:
    """vLLM empties no cache while it captures, neither by torch.accelerator nor by torch.npu."""
    from vllm.compilation import cuda_graph

    inside = {}

    class Stop(Exception):
        pass

    def pool() -> None:
        ascend_runtime.accel_mem.empty_cache()
        torch.accelerator.empty_cache()
        inside["done"] = True
        raise Stop

    wrapper = cuda_graph.CUDAGraphWrapper.__new__(cuda_graph.CUDAGraphWrapper)
    monkeypatch.setattr(cuda_graph.envs, "VLLM_LOGGING_LEVEL", "ERROR", raising=False)
    vars(wrapper).update(
        runtime_mode=cuda_graph.CUDAGraphMode.FULL,
        cudagraph_options=SimpleNamespace(
            debug_log_enable=False, gc_disable=True, weak_ref_output=False
        ),
        concrete_cudagraph_entries={},
        graph_pool=None,
        is_debugging_mode=False,
        runnable=lambda: None,
    )
    context = SimpleNamespace(
        batch_descriptor="batch", cudagraph_runtime_mode=cuda_graph.CUDAGraphMode.FULL
    )
    monkeypatch.setattr(cuda_graph, "get_forward_context", lambda: context)
    monkeypatch.setattr(cuda_graph, "is_forward_context_available", lambda: True, raising=False)
    monkeypatch.setattr(cuda_graph, "validate_cudagraph_capturing_enabled", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(cuda_graph, "current_platform", SimpleNamespace(graph_pool_handle=pool))
    with pytest.raises(Stop):
        wrapper()
    assert inside == {"done": True}
    assert npu.seen == []
    ascend_runtime.accel_mem.empty_cache()  # after the capture it is the real one again
    assert npu.seen == [("empty_cache",)]
