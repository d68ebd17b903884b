"""The same platform with the device of type "npu" on host memory: every branch for NPUs is taken.

Wants the package `npu_device` and, for the kernels, Triton in its interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import npu_device
import torch

from torch_platform.platform import TorchPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

npu_device.load(devices=4)


class NpuPlatform(TorchPlatform):
    """An out-of-tree platform; its devices are torch's "npu"."""

    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    device_control_env_var = "ASCEND_RT_VISIBLE_DEVICES"
    worker = "torch_platform.worker.NpuWorker"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the name that the device gives itself."""
        return torch.npu.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return a device's memory in bytes."""
        return torch.npu.mem_get_info(device_id)[1]

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make a device the current one."""
        torch.npu.set_device(device)

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device = None) -> float:
        """Return the bytes in use on a device."""
        return torch.npu.memory_allocated(device)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Leave block sizes as they are: hybrid models have theirs from `ascend_runtime`."""
