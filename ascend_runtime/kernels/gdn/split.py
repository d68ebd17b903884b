"""The projections of Qwen3-Next sorted by a Triton kernel."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid, without_gaps

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
#: Elements of a tile, and its columns at most.
_TILE: Final = 8192
_WIDEST: Final = 1024


@triton.jit
def _copy(source, target, row, rows, from_stride, to_stride, size, COLUMNS: tl.constexpr):
    """Copy a rectangle whose columns lie side by side in both places."""
    for first in range(0, size, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < size)[None, :]
        tile = tl.load(source + row[:, None] * from_stride + column[None, :], mask=mask, other=0)
        tl.store(target + row[:, None] * to_stride + column[None, :], tile, mask=mask)


@triton.jit(do_not_specialize=["rows", "key_heads", "keys", "values", "stride"])
def _split_kernel(
    qkvz,
    mixed,
    z,
    rows,
    key_heads,
    keys,
    values,
    stride,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    of_keys, of_values = key_heads * keys, key_heads * values
    width = 2 * of_keys + of_values
    for task in range(tl.program_id(0), tl.cdiv(rows, ROWS) * key_heads, tl.num_programs(0)):
        block = task // key_heads
        head = task - block * key_heads
        first = tl.cast(block * ROWS, tl.int64)
        left = rows - block * ROWS
        source = qkvz + first * stride + head * (2 * keys + 2 * values)
        target = mixed + first * width
        _copy(source, target + head * keys, row, left, stride, width, keys, KEYS)
        source += keys
        _copy(source, target + of_keys + head * keys, row, left, stride, width, keys, KEYS)
        source += keys
        target += 2 * of_keys + head * values
        _copy(source, target, row, left, stride, width, values, VALUES)
        target = z + first * of_values + head * values
        _copy(source + values, target, row, left, stride, of_values, values, VALUES)


def split_qkvzba(
    qkvz: torch.Tensor, ba: torch.Tensor, hk: int, hv: int, dk: int, dv: int
) -> _Parts:
    """See `ascend_runtime.gdn.split_qkvzba`; b and a, a few numbers a row, are copied by torch."""
    rows, ratio = qkvz.size(0), hv // hk
    qkvz = without_gaps(qkvz)
    mixed = qkvz.new_empty(rows, 2 * hk * dk + hv * dv)
    z = qkvz.new_empty(rows, hv, dv)
    keys, values = (min(_WIDEST, triton.next_power_of_2(size)) for size in (dk, ratio * dv))
    per_task = max(1, min(_TILE // max(keys, values), triton.next_power_of_2(max(1, rows))))
    _split_kernel[vector_grid(triton.cdiv(rows, per_task) * hk)](
        qkvz,
        mixed,
        z,
        rows,
        hk,
        dk,
        ratio * dv,
        qkvz.stride(0),
        ROWS=per_task,
        KEYS=keys,
        VALUES=values,
    )
    gates = ba.view(rows, hk, 2, ratio)
    b, a = (gates[:, :, part].clone(memory_format=torch.contiguous_format) for part in (0, 1))
    return mixed, z, b.view(rows, hv), a.view(rows, hv)
