"""How many programs a kernel is launched with, and what its addresses can reach."""

from __future__ import annotations

import torch

from ascend_runtime.device import cores

#: What triton-ascend's launcher takes at most, over all dimensions of the grid.
MOST_PROGRAMS = 65535


def vector_grid(tasks: int) -> tuple[int]:
    """Return the grid of a kernel without matrix products: a program a vector core, or a task."""
    return (max(1, min(tasks, cores()[1], MOST_PROGRAMS)),)


def matrix_grid(tasks: int) -> tuple[int]:
    """Return the grid of a kernel that uses `tl.dot`: a program an AI core, or a task."""
    return (max(1, min(tasks, cores()[0], MOST_PROGRAMS)),)


def spans_little(*tensors: torch.Tensor | None) -> bool:
    """Whether offsets within each tensor, and within its copy without gaps, fit 32 bits."""
    return all(_span(x) < 2**31 for x in tensors if x is not None)


def _span(x: torch.Tensor) -> int:
    steps = zip(x.shape, x.stride(), strict=True)
    return max(sum((size - 1) * stride for size, stride in steps), x.numel())


def side_by_side(*tensors: torch.Tensor | None) -> bool:
    """Whether the columns of each tensor lie one behind another."""
    return all(x is None or x.stride(-1) == 1 or x.shape[-1] == 1 for x in tensors)


def without_gaps(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose columns lie one behind another: a copy unless they do."""
    return x if side_by_side(x) else x.contiguous()
