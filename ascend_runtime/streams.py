"""What `torch.<device>` has under another name on some devices, or not at all: streams and graphs.

All else of streams and events has one name on every device, and vLLM's platform hands it on.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch

#: How the device's own module calls its graphs; `CUDAGraph` is what all others say.
_GRAPHS: Final = {"npu": "NPUGraph", "xpu": "XPUGraph"}


def _device() -> tuple[str, ModuleType]:
    """Return the type of the platform's device and torch's module for it."""
    kind: str = import_module("vllm.platforms").current_platform.device_type
    return kind, torch.get_device_module(kind)


def set_stream(stream: Any) -> None:
    """Make a stream of the platform's device the current one; the CPU has but one stream.

    On CUDA it is `torch.cuda.set_stream`, which vLLM replaces to keep track of the stream.
    """
    setter = getattr(_device()[1], "set_stream", None)
    if setter is not None:
        setter(stream)


def new_graph() -> Any:
    """Return an empty graph of the platform's device; AttributeError where there are none."""
    kind, module = _device()
    return getattr(module, _GRAPHS.get(kind, "CUDAGraph"))()


def graph(empty: Any, pool: Any = None) -> Any:
    """Return the context that records work into a graph, with memory from a pool.

    Raises AttributeError where there are no graphs.
    """
    return _device()[1].graph(empty, pool)
