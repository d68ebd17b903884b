"""Launches of our kernels at the shapes that models use, for lowering and for real devices.

A module of this folder is a topic of `ascend_runtime.kernels`, and has a list CASES. In `vllm_own`
are launches of kernels of vLLM that we have no kernel for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ascend_runtime.operations import OPERATIONS

#: What a call is made with.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Maker:
    """Makes the tensors of a case, the same each time for a seed, on the device that is wanted."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = device
        self._random = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self._random).to(dtype).to(self.device)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(shape, generator=self._random).to(dtype).to(self.device)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        drawn = torch.randint(low, high, shape, generator=self._random)
        return drawn.to(dtype).to(self.device)

    def permutation(self, count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randperm(count, generator=self._random).to(dtype).to(self.device)

    def tensor(self, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return zeros: what is not written compares equal."""
        return torch.zeros(shape, dtype=dtype, device=self.device)


def returned(result: Any, call: Call) -> list[torch.Tensor]:
    """Take what was returned for the results: a tensor or a tuple with some."""
    values = result if isinstance(result, tuple) else (result,)
    return [one for one in values if isinstance(one, torch.Tensor)]


def in_place(*names: int | str) -> Callable[[Any, Call], list[torch.Tensor]]:
    """Take arguments for the results, by place or keyword, beside what was returned."""

    def results(result: Any, call: Call) -> list[torch.Tensor]:
        args, kwargs = call
        wrote = [args[name] if isinstance(name, int) else kwargs[name] for name in names]
        return [*returned(result, call), *wrote]

    return results


@dataclass(frozen=True)
class Case:
    """One call of an operation."""

    operation: str
    label: str
    """Which model and step has such a call, and its sizes."""
    make: Callable[[Maker], Call]
    results: Callable[[Any, Call], Sequence[torch.Tensor]] = returned
    tolerance: float = 1e-5
    """Of each result, relative to its largest value; integers must be equal."""
    upstream: str | None = None
    """`module:name` of vLLM's own function or kernel."""
    grid: Callable[[Call], tuple[int, ...]] | None = field(default=None)
    """For a kernel of vLLM: the grid that vLLM launches it with."""
    only_vllm: bool = False
    """Whether there is no kernel of ours that takes these arguments."""
    edited: bool = False
    """Whether the patched tree has vLLM's kernel with edits of ours."""


def load(names: Sequence[str] = (), own: bool = False) -> list[Case]:
    """Return the cases of all topics, or of operations and topics given.

    Args:
        own: also those of kernels that only vLLM has; without, each case is of a kernel of ours.
    """
    found: list[Case] = []
    for package in (__name__, *([f"{__name__}.vllm_own"] if own else [])):
        folder: Sequence[str] = importlib.import_module(package).__path__
        for module in sorted(one.name for one in pkgutil.iter_modules(folder) if not one.ispkg):
            found += importlib.import_module(f"{package}.{module}").CASES
    if not names:
        return found
    chosen = [c for c in found if c.operation in names or c.operation.split(".")[0] in names]
    missed = [
        name
        for name in names
        if not any(name in (c.operation, c.operation.split(".")[0]) for c in chosen)
    ]
    if missed:
        known = ", ".join(sorted({case.operation for case in found}))
        plain = " (it has none of ours)" if missed[0] in OPERATIONS else ""
        raise ValueError(f"no kernel is named {', '.join(missed)}{plain}; there are {known}")
    return chosen
