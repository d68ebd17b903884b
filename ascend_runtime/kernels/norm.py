"""Triton kernels for norms; the definitions are in `ascend_runtime.reference.norm`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, spans_little, vector_grid, without_gaps
from ascend_runtime.reference.norm import check_layer_norm

#: Elements of a tile.
_TILE = 8192
_GATED_TILE = 2048
#: The widest group, a tile of one row.
_WIDEST = 4096


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
    if not y.numel():
        return y
    flat = without_gaps(x.reshape(-1, columns))
    block = triton.next_power_of_2(columns)
    per_task = _TILE // block
    _l2norm_kernel[vector_grid(triton.cdiv(len(flat), per_task))](
        flat, y, len(flat), columns, flat.stride(0), eps, ROWS=per_task, COLUMNS=block
    )
    return y


@triton.jit
def _gate(z, SIGMOID: tl.constexpr):
    gate = tl.sigmoid(z)
    if not SIGMOID:
        gate = gate * z
    return gate


@triton.jit(do_not_specialize=["rows", "size", "groups", "x_stride", "z_stride", "y_stride", "eps"])
def _layer_norm_kernel(
    x,
    y,
    weight,
    bias,
    z,
    means,
    scales,
    rows,
    size,
    groups,
    x_stride,
    z_stride,
    y_stride,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_Z: tl.constexpr,
    GATE_LAST: tl.constexpr,
    SIGMOID: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    known = column < size
    tiles = tl.cdiv(rows, ROWS)
    for task in range(tl.program_id(0), tiles * groups, tl.num_programs(0)):
        group = task // tiles
        first = (task - group * tiles) * ROWS
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & known[None, :]
        part = group * size + column
        tile = tl.load(x + row[:, None] * x_stride + part[None, :], mask=mask, other=0.0)
        tile = tile.to(tl.float32)
        if HAS_Z:
            gate = tl.load(z + row[:, None] * z_stride + part[None, :], mask=mask, other=0.0)
            gate = _gate(gate.to(tl.float32), SIGMOID)
            if not GATE_LAST:
                tile = tile * gate
        if not RMS:
            mean = tl.sum(tile, axis=1) / size
            tl.store(means + group * rows + row, mean, mask=row < rows)
            tile = tl.where(mask, tile - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(tile * tile, axis=1) / size + eps)
        tl.store(scales + group * rows + row, scale, mask=row < rows)
        w = tl.load(weight + part, mask=known, other=0.0).to(tl.float32)
        tile = tile * scale[:, None] * w[None, :]
        if HAS_BIAS:
            b = tl.load(bias + part, mask=known, other=0.0).to(tl.float32)
            tile = tile + b[None, :]
        if HAS_Z and GATE_LAST:
            tile = tile * gate
        place = y + row[:, None] * y_stride + part[None, :]
        tl.store(place, tile.to(y.dtype.element_ty), mask=mask)


def layer_norm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    z: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """See `ascend_runtime.reference.norm.layer_norm_fwd`; groups of at most 4096 columns."""
    rows, columns = x.shape
    size = check_layer_norm(x, weight, bias, z, out, group_size, activation)
    if out is None:
        out = torch.empty_like(x)
    groups = columns // size
    scales = torch.empty(groups * rows, dtype=torch.float32, device=x.device)
    mean = None if is_rms_norm else torch.empty_like(scales)
    block = triton.next_power_of_2(size)
    per_task = max(1, _GATED_TILE // block)
    if rows:
        _layer_norm_kernel[vector_grid(triton.cdiv(rows, per_task) * groups)](
            x,
            out,
            weight,
            weight if bias is None else bias,
            x if z is None else z,
            scales if mean is None else mean,
            scales,
            rows,
            size,
            groups,
            x.stride(0),
            0 if z is None else z.stride(0),
            out.stride(0),
            eps,
            ROWS=per_task,
            COLUMNS=block,
            RMS=is_rms_norm,
            HAS_BIAS=bias is not None,
            HAS_Z=z is not None,
            GATE_LAST=norm_before_gate,
            SIGMOID=activation == "sigmoid",
        )
    return out, mean, scales


def layer_norm_fwd_fits(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    z: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> bool:
    """Whether a group fits a tile, columns lie side by side, and rows within 32 bits."""
    close = side_by_side(x, weight, bias, z, out) and spans_little(x, z, out)
    return close and (group_size or x.shape[1]) <= _WIDEST


def l2norm_fwd_fits(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> bool:
    """Whether a row fits a tile, and rows lie within 32 bits."""
    return x.shape[-1] <= _TILE and spans_little(x)
