"""Buffers that the host writes and the device reads, where there is no unified addressing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch


class HostMirrorBuffer:
    """A host tensor, and a device tensor to which its rows are copied on demand.

    `cpu` is the host tensor, pinned where the platform can pin memory; `np` its numpy view; `uva`
    the device tensor. All begin as zeros of shape `size`; `device` is by default the current device
    of vLLM's platform. On the CPU the two are separate memory too.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        shape = (size,) if isinstance(size, int) else tuple(size)
        pin_memory = import_module("vllm.utils.platform_utils").is_pin_memory_available()
        if device is None:
            device = import_module("vllm.platforms").current_platform.device_type
        # Not on a default device that a caller has set: this one is the host's.
        self.cpu = torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=pin_memory)
        self.np = self.cpu.numpy()
        self.uva = torch.zeros(shape, dtype=dtype, device=device)

    def device_view(self, n: int) -> torch.Tensor:
        """Return the first `n` rows of the device tensor, as those of the host are now.

        The copy is enqueued on the current stream: what was enqueued before still sees the old
        rows, and the host's must not be written before it is done. Rows behind `n` stay as they
        are.
        """
        rows = self.uva[:n]
        return rows.copy_(self.cpu[:n], non_blocking=True)
