"""The memory calls of torch.accelerator, on an NPU whose allocator does not answer them.

torch.accelerator asks the device's allocator, which must be a `c10::DeviceAllocator`. That of
torch_npu 2.9 and 2.10 is not, and each call raises; torch_npu 2.13's is. So the calls go to
torch.npu while they must, and to torch.accelerator everywhere else.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_runtime.device import is_npu

Device = torch.device | str | int | None


def empty_cache() -> None:
    """Give cached memory that nothing uses back to the device."""
    _module().empty_cache()


def memory_stats(device: Device = None, /) -> dict[str, int]:
    """Return the allocator's counters, such as "allocated_bytes.all.peak" in bytes."""
    stats: dict[str, int] = _module().memory_stats(device)
    return stats


def memory_reserved(device: Device = None, /) -> int:
    """Return the bytes that the allocator holds, in use or cached."""
    return int(_module().memory_reserved(device))


def reset_peak_memory_stats(device: Device = None, /) -> None:
    """Let the peaks that `memory_stats` tells start from what is in use now."""
    _module().reset_peak_memory_stats(device)


def _module() -> Any:
    """Looked up at each call: vLLM and the plugin replace functions of both during capture."""
    if is_npu() and not _has_device_allocator():
        return getattr(torch, "npu")  # noqa: B009  (torch knows it only once torch_npu is loaded)
    return torch.accelerator


def _has_device_allocator() -> bool:
    """Ask as torch.accelerator does; before torch has the question, nothing can answer it."""
    try:
        torch._C._accelerator_isAllocatorInitialized()
    except (AttributeError, RuntimeError):
        return False
    return True
