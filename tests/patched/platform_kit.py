"""Stand-ins for vLLM's platform: what each kind answers, of the class that vLLM's own ones have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import vllm.platforms
from vllm.platforms.interface import Platform, PlatformEnum


class Npu(Platform):
    """As the Ascend plugin's platform presents itself."""

    _enum = PlatformEnum.OOT
    device_name = device_type = "npu"
    dispatch_key = "PrivateUse1"
    supported_quantization = ["ascend", "compressed-tensors"]  # noqa: RUF012  (as vLLM's are)


class Cuda(Platform):
    _enum = PlatformEnum.CUDA
    device_name = device_type = "cuda"
    dispatch_key = "CUDA"


class Rocm(Platform):
    _enum = PlatformEnum.ROCM
    device_name = "rocm"
    device_type = "cuda"
    dispatch_key = "CUDA"


class Xpu(Platform):
    _enum = PlatformEnum.XPU
    device_name = device_type = "xpu"
    dispatch_key = "XPU"


class Cpu(Platform):
    _enum = PlatformEnum.CPU
    device_name = device_type = "cpu"
    dispatch_key = "CPU"

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False


KINDS: dict[str, type[Platform]] = {
    "npu": Npu,
    "cuda": Cuda,
    "rocm": Rocm,
    "xpu": Xpu,
    "cpu": Cpu,
}


@contextmanager
def on_platform(kind: str, *modules: object) -> Iterator[Platform]:
    """Make a stand-in the platform of vLLM, and of modules that hold a copy of it already."""
    stub = KINDS[kind]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm.platforms, "_current_platform", stub)
        for module in modules:
            patch.setattr(module, "current_platform", stub)
        yield stub
