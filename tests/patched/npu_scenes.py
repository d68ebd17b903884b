"""Edited code on the device of type "npu" that lies in host memory: `python npu_scenes.py SCENE`.

Each scene prints one JSON object for test_on_npu_device.py.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile

import npu_device
import torch
import torch.distributed as dist

MIB = 1 << 20
RANKS = 2


def use_npu(statistics: bool = False) -> torch.device:
    """Load the device, and make the platform one that is named npu."""
    npu_device.load(memory=1 << 30, statistics=statistics)
    import vllm.platforms
    from platform_kit import Npu

    vllm.platforms._current_platform = Npu()
    Npu.mem_get_info = staticmethod(lambda device=None: torch.npu.mem_get_info(device))
    return torch.device("npu", 0)


def memory(statistics: bool) -> dict[str, object]:
    """What vLLM's memory profiling sees of an activation of 3 MiB; KV cache of 2 stays."""
    device = use_npu(statistics)
    from vllm.utils.mem_utils import MemorySnapshot, memory_profiling

    asked = []
    for module, name in ((torch.npu, "npu"), (torch.accelerator, "accelerator")):
        real = module.empty_cache
        module.empty_cache = lambda _r=real, _n=name: (asked.append(_n), _r())[1]
    before = MemorySnapshot(device=device)
    with memory_profiling(before, weights_memory=0) as result:
        kept = torch.empty(2 * MIB, dtype=torch.uint8, device=device)
        torch.empty(3 * MIB, dtype=torch.uint8, device=device)
    return {
        "peak": result.torch_peak_increase,
        "reserved": result.after_profile.torch_memory - before.torch_memory >= kept.nbytes,
        "asked": asked,
    }


def collectives() -> dict[str, object]:
    """Two gloo ranks hand tensors of the device on; gloo itself takes none of them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(RANKS) as pool:
        return dict(enumerate(pool.starmap(rank, [(r, f"{folder}/store") for r in range(RANKS)])))


def rank(number: int, store: str) -> dict[str, object]:
    device = use_npu()
    dist.init_process_group("gloo", f"file://{store}", rank=number, world_size=RANKS)
    group = dist.group.WORLD
    from test_collectives_310p import coordinator
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )

    from ascend_runtime.device import is_npu

    tensor = torch.full((2, 2), number + 1, dtype=torch.int64, device=device).t()
    communicator = DeviceCommunicatorBase(group, device, group)
    try:
        dist.all_reduce(tensor.clone())
        refused = ""
    except (RuntimeError, ValueError) as error:
        refused = type(error).__name__
    reduced = communicator.all_reduce(tensor)
    mine = coordinator([0, 1], group)
    sent = {"ids": torch.tensor([7, 8], device=device), "host": torch.tensor([9]), "n": 3}
    got = mine.broadcast_tensor_dict(sent if number == 1 else None, src=1)
    single = mine.broadcast(torch.tensor([number * 10], device=device), 1)
    answer = {
        "npu": is_npu() and is_npu(tensor),
        "refused": refused,
        "reduced": [reduced is tensor, tensor.device.type, tensor.tolist()],
        "dict": {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in got.items()},
        "devices": [got["ids"].device.type, got["host"].device.type],
        "single": [single.device.type, single.tolist()],
    }
    dist.barrier()
    dist.destroy_process_group()
    return answer


SCENES = {
    "memory": lambda: memory(False),
    "memory-statistics": lambda: memory(True),
    "collectives": collectives,
}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
