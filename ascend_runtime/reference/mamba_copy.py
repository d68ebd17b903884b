"""What the copy of Mamba states does, in plain Python: the definition."""

from __future__ import annotations

import ctypes

import torch


def batch_memcpy(src_ptrs: torch.Tensor, dst_ptrs: torch.Tensor, sizes: torch.Tensor) -> None:
    """Copy `sizes[i]` bytes from address `src_ptrs[i]` to address `dst_ptrs[i]`, for each i.

    A copy reads all before it writes: its source and target may overlap, as those of a state that
    is moved within its own block do. Between copies there is no order, so what one writes no other
    may read or write.

    Args:
        src_ptrs, dst_ptrs: [n], int64: addresses in this process's host memory.
        sizes: [n], int32: bytes, 0 or more.

    Raises:
        ValueError: if the three differ in length, or a size is negative.
    """
    if not src_ptrs.shape == dst_ptrs.shape == sizes.shape:
        shapes = ", ".join(str(list(one.shape)) for one in (src_ptrs, dst_ptrs, sizes))
        raise ValueError(f"as many sources as targets and sizes are needed, not {shapes}")
    if sizes.lt(0).any():
        raise ValueError(f"a copy of {int(sizes.min())} bytes")
    copies = zip(dst_ptrs.tolist(), src_ptrs.tolist(), sizes.tolist(), strict=True)
    for target, source, size in copies:
        ctypes.memmove(target, source, size)
