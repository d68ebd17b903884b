"""Collectives of the platform."""

from __future__ import annotations

import torch
from vllm.distributed.device_communicators.all2all import NaiveAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class StagedCommunicator(DeviceCommunicatorBase):
    """vLLM's plain communicator by way of host tensors: gloo takes none of an NPU.

    Data-parallel ranks share the experts of a model; every rank gets the tokens of all.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.use_all2all:
            self.all2all_manager = NaiveAll2AllManager(self.cpu_group)
            self.dispatch_router_logits = self.all2all_manager.dispatch_router_logits
            self.combine = self.all2all_manager.combine

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

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Receive a tensor from a rank."""
        device, self.device = self.device, torch.device("cpu")
        try:
            return super().recv(size, dtype, src).to(device)
        finally:
            self.device = device
