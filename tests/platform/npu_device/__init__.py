"""A device of type "npu" on host memory, to run code that asks tensors where they are.

It stands in for torch_npu where there is no NPU: `load()` makes `torch.device("npu")` and
`torch.npu` work in this process. Operators run their CPU kernels, each at once and in order; mixing
devices fails as it does on any accelerator. It says nothing about speed, precision, graphs or
operators that a real NPU lacks.

Its C++ half is built when it is first needed (about half a minute; ninja and a C++ compiler) and
kept in the cache folder.
"""

from __future__ import annotations

import torch

from npu_device.build import extension

_loaded = False


def load(devices: int = 2, memory: int = 8 << 30, statistics: bool = False) -> None:
    """Give this process `devices` devices with `memory` bytes each; a second call does nothing.

    torch keeps the name "npu" and the device until the process ends. With `statistics` the memory
    functions of torch.accelerator work; without, they raise, as they do with torch_npu 2.9. Raises
    RuntimeError when another backend has taken torch's place for one, or when nothing can be built.
    """
    global _loaded
    if _loaded:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(f"torch's out-of-tree backend is {taken!r} already")
    native = extension()
    torch.utils.rename_privateuse1_backend("npu")
    native.install(devices, memory, statistics)
    from npu_device import torch_npu_module

    torch._register_device_module("npu", torch_npu_module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _loaded = True
