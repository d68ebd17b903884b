"""How the copies of Mamba states are handed to the kernel."""

from __future__ import annotations

from typing import Final

from ascend_runtime.device import is_npu

#: Below the 65535 programs of a launch, and a multiple of 16, so that slices of the arguments are
#: aligned as the whole is: a kernel that is specialised for that is not compiled twice.
_PROGRAMS: Final = 1 << 15


def block_size() -> int:
    """Return the bytes that a program copies in one iteration: 8192 on an NPU, else vLLM's 1024."""
    return 8192 if is_npu() else 1024


def launches(batch: int) -> list[slice]:
    """Return the slices of `batch` copies that get a launch each, in order: one slice off NPUs.

    On an NPU none is longer than 32768, as a launch has a program for each copy.
    """
    if not is_npu() or batch <= _PROGRAMS:
        return [slice(0, batch)]
    return [slice(start, min(start + _PROGRAMS, batch)) for start in range(0, batch, _PROGRAMS)]
