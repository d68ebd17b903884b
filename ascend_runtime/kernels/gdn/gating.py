"""The gates of gated delta nets by a Triton kernel."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid, without_gaps

#: Elements of a tile.
_TILE: Final = 4096


@triton.jit(do_not_specialize=["rows", "heads", "a_stride", "b_stride", "beta", "threshold", "top"])
def _gating_kernel(
    A_log,
    a,
    b,
    dt_bias,
    g,
    strength,
    rows,
    heads,
    a_stride,
    b_stride,
    beta,
    threshold,
    top,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
):
    head = tl.arange(0, HEADS)
    known = head < heads
    bias = tl.load(dt_bias + head, mask=known, other=0.0).to(tl.float32)
    slope = -tl.exp(tl.load(A_log + head, mask=known, other=0.0).to(tl.float32))
    for task in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        first = task * ROWS
        base = tl.cast(first, tl.int64)
        row = tl.arange(0, ROWS)
        mask = (row < rows - first)[:, None] & known[None, :]
        place = row[:, None] * a_stride + head[None, :]
        x = tl.load(a + base * a_stride + place, mask=mask, other=0.0)
        x = x.to(tl.float32) + bias[None, :]
        y = x * beta
        # Never the exponential of a large number, which would be infinite.
        soft = (tl.maximum(y, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(y)))) / beta
        decay = slope[None, :] * tl.where(y > threshold, x, soft)
        place = row[:, None] * b_stride + head[None, :]
        x = tl.load(b + base * b_stride + place, mask=mask, other=0.0)
        strong = top / (1.0 + tl.exp(-x.to(tl.float32)))
        place = base * heads + row[:, None] * heads + head[None, :]
        tl.store(g + place, decay, mask=mask)
        tl.store(strength + place, strong.to(strength.dtype.element_ty), mask=mask)


def gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.gating`."""
    g, strength = gates(A_log, a, b, dt_bias, beta, threshold, b.dtype)
    return g[None], strength[None]


def olmo_gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    allow_neg_eigval: bool = False,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.olmo_gating`."""
    top = 2.0 if allow_neg_eigval else 1.0
    g, strength = gates(A_log, a, b, dt_bias, beta, threshold, torch.float32, top)
    return g[None], strength[None]


def gates(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float,
    threshold: float,
    dtype: torch.dtype,
    top: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return g in float32, and top * sigmoid(b) of a dtype, both [T, heads]."""
    rows, heads = a.shape
    g = torch.empty(rows, heads, dtype=torch.float32, device=a.device)
    strength = torch.empty(rows, heads, dtype=dtype, device=a.device)
    a, b = without_gaps(a), without_gaps(b)
    block = triton.next_power_of_2(heads)
    per_task = max(1, min(64, _TILE // block))
    _gating_kernel[vector_grid(triton.cdiv(rows, per_task))](
        A_log.contiguous(),
        a,
        b,
        dt_bias.contiguous(),
        g,
        strength,
        rows,
        heads,
        a.stride(0),
        b.stride(0),
        float(beta),
        float(threshold),
        top,
        ROWS=per_task,
        HEADS=block,
    )
    return g, strength
