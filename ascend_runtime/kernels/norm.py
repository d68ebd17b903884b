"""Triton kernels for norms; the definitions are in `ascend_runtime.reference.norm`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid

#: Elements of a tile, 32 KiB of float32.
_TILE = 8192


@triton.jit(do_not_specialize=["rows", "columns", "x_stride", "eps"])
def _l2norm_kernel(x, y, rows, columns, x_stride, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    for task in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = task * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        tile = tl.load(x + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0)
        tile = tile.to(tl.float32)
        scale = tl.rsqrt(tl.sum(tile * tile, axis=1) + eps)
        out = tile * scale[:, None]
        tl.store(
            y + row[:, None] * columns + column[None, :], out.to(y.dtype.element_ty), mask=mask
        )


def l2norm_fwd(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """See `ascend_runtime.reference.norm.l2norm_fwd`; at most 8192 columns (RuntimeError)."""
    columns = x.shape[-1]
    if columns > _TILE:
        raise RuntimeError(f"l2norm_fwd: {columns} columns, at most {_TILE} fit a tile")
    y = torch.empty(x.shape, dtype=output_dtype or x.dtype, device=x.device)
    flat = x.reshape(-1, columns)
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    block = triton.next_power_of_2(columns)
    per_task = _TILE // block
    _l2norm_kernel[vector_grid(triton.cdiv(len(flat), per_task))](
        flat, y, len(flat), columns, flat.stride(0), eps, ROWS=per_task, COLUMNS=block
    )
    return y
