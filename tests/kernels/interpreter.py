"""Make Triton's interpreter run kernels on CPU tensors, vLLM's own among them."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import GridExecutor

from ascend_runtime.kernels.launch import MOST_PROGRAMS


class GridTooLarge(RuntimeError):
    """A launch that triton-ascend refuses."""


def prepare() -> None:
    """Let autotuned kernels take their first configuration, and refuse grids that Ascend does."""
    Autotuner.run = _first_configuration
    _wrap_launch()


def prepare_vllm() -> None:
    """Let vLLM's kernels run: they reach `tl.exp` by other names, and enter device contexts."""
    torch.accelerator.device_index = _no_device
    aliases = importlib.import_module("math_aliases")
    package = importlib.import_module("vllm.model_executor.layers.fla.ops")
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for name in ("exp", "log", "log2"):
            if hasattr(module, name):
                setattr(module, name, getattr(aliases, name))


@contextlib.contextmanager
def _no_device(index: int | None) -> Iterator[None]:
    yield


def _first_configuration(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
    return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())


def _wrap_launch() -> None:
    launch = GridExecutor.__call__

    def checked(self: GridExecutor, *args: Any, **kwargs: Any) -> Any:
        given = self.grid
        # The interpreter hands copies of tensors to a grid that is a function; vLLM's ask
        # the tensors themselves.
        names = dict(zip(self.arg_names, args, strict=False))
        if callable(given):
            self.grid = lambda meta: given({**meta, **names, **kwargs})
        size = 1
        for extent in given if not callable(given) else given({**names, **kwargs}):
            size *= int(extent)
        if _sizes is not None:
            _sizes.append(size)
            return None
        if size > MOST_PROGRAMS and _limited:
            raise GridTooLarge(f"{size} programs, at most {MOST_PROGRAMS} can be launched")
        if size == 0:
            return None
        return launch(self, *args, **kwargs)

    GridExecutor.__call__ = checked


_limited = False
_sizes: list[int] | None = None


@contextlib.contextmanager
def ascend_grids() -> Iterator[None]:
    """Refuse launches of more than 65535 programs, as triton-ascend does."""
    global _limited
    before, _limited = _limited, True
    try:
        yield
    finally:
        _limited = before


@contextlib.contextmanager
def launch_sizes() -> Iterator[list[int]]:
    """Note how many programs each launch has, and run none: for sizes that would take hours."""
    global _sizes
    _sizes = []
    try:
        yield _sizes
    finally:
        _sizes = None


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """Return the same tensor, its last dimension of step 2, with other values in between."""
    return torch.stack((x, x.roll(1)), -1)[..., 0]
