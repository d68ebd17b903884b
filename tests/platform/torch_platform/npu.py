"""The same platform with the device of type "npu" on host memory: every branch for NPUs is taken.

Wants the package `npu_device` and, for the kernels, Triton in its interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import npu_device
import torch
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from torch_platform.platform import TorchPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

npu_device.load()


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

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the class that does collectives."""
        return f"{__name__}.StagedCommunicator"


class StagedCommunicator(DeviceCommunicatorBase):
    """vLLM's plain communicator by way of host tensors: gloo takes none of an NPU."""

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Join the ranks' tensors along a dimension."""
        return super().all_gather(input_.cpu(), dim).to(input_.device)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Add the ranks' tensors, and keep this rank's piece of a dimension."""
        return super().reduce_scatter(input_.cpu(), dim).to(input_.device)

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """Join the ranks' tensors at one rank."""
        joined = super().gather(input_.cpu(), dst, dim)
        return None if joined is None else joined.to(input_.device)

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Send a tensor to a rank."""
        super().send(tensor.cpu(), dst)

    def recv(
        self, size: torch.Size, dtype: torch.dtype, src: int | None = None
    ) -> torch.Tensor:
        """Receive a tensor from a rank."""
        device, self.device = self.device, torch.device("cpu")
        try:
            return super().recv(size, dtype, src).to(device)
        finally:
            self.device = device
