"""How many programs a kernel is launched with."""

from __future__ import annotations

from ascend_runtime.device import cores

#: What triton-ascend's launcher takes at most, over all dimensions of the grid.
MOST_PROGRAMS = 65535


def vector_grid(tasks: int) -> tuple[int]:
    """Return the grid of a kernel without matrix products: a program a vector core, or a task."""
    return (max(1, min(tasks, cores()[1], MOST_PROGRAMS)),)


def matrix_grid(tasks: int) -> tuple[int]:
    """Return the grid of a kernel that uses `tl.dot`: a program an AI core, or a task."""
    return (max(1, min(tasks, cores()[0], MOST_PROGRAMS)),)
