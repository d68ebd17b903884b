"""The norm of queries and keys, in two steps with the ranks' all-reduce between them.

Each step is one operator to torch.compile.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, vector_grid
from ascend_runtime.reference.minimax import AllReduce

#: Elements of a tile, and the fewest and most columns.
TILE: Final = 2048
_NARROWEST: Final = 128
_WIDEST: Final = 2048
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _mean_square(x, row, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        tile = tl.load(x + column[None, :], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(tile * tile, axis=1)
    return total / width


@triton.jit(do_not_specialize=["rows", "q_width", "k_width", "q_stride", "k_stride"])
def _mean_squares_kernel(
    q,
    k,
    squares,
    rows,
    q_width,
    k_width,
    q_stride,
    k_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    lane = tl.arange(0, ROWS)
    side = tl.arange(0, 2)
    for task in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        first = task * ROWS
        row = first + lane
        place = q + first.to(tl.int64) * q_stride + lane[:, None] * q_stride
        of_q = _mean_square(place, row, rows, q_width, ROWS, COLUMNS)
        place = k + first.to(tl.int64) * k_stride + lane[:, None] * k_stride
        of_k = _mean_square(place, row, rows, k_width, ROWS, COLUMNS)
        pair = tl.where(side[None, :] == 0, of_q[:, None], of_k[:, None])
        place = squares + row[:, None] * 2 + side[None, :]
        tl.store(place, pair, mask=(row < rows)[:, None])


@triton.jit
def scale_of(squares, row, rows, tp_world, eps):
    """Return 1 / sqrt(mean + eps) of each row, from every other sum of the ranks' mean squares."""
    total = tl.load(squares + row * 2, mask=row < rows, other=0.0)
    return tl.rsqrt(total / tp_world + eps)


@triton.jit
def _norm(x, y, weight, scale, row, rows, width, COLUMNS: tl.constexpr):
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        tile = tl.load(x + column[None, :], mask=mask, other=0.0).to(tl.float32)
        w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
        tile = tile * scale[:, None] * w[None, :]
        tl.store(y + column[None, :], tile.to(y.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        "rows",
        "q_width",
        "k_width",
        "q_stride",
        "k_stride",
        "tp_world",
        "q_eps",
        "k_eps",
    ]
)
def _norm_kernel(
    q,
    k,
    q_out,
    k_out,
    q_weight,
    k_weight,
    squares,
    rows,
    q_width,
    k_width,
    q_stride,
    k_stride,
    tp_world,
    q_eps,
    k_eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    lane = tl.arange(0, ROWS)
    for task in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        first = task * ROWS
        row = first + lane
        base = first.to(tl.int64)
        scale = scale_of(squares, row, rows, tp_world, q_eps)
        x = q + base * q_stride + lane[:, None] * q_stride
        y = q_out + base * q_width + lane[:, None] * q_width
        _norm(x, y, q_weight, scale, row, rows, q_width, COLUMNS)
        scale = scale_of(squares + 1, row, rows, tp_world, k_eps)
        x = k + base * k_stride + lane[:, None] * k_stride
        y = k_out + base * k_width + lane[:, None] * k_width
        _norm(x, y, k_weight, scale, row, rows, k_width, COLUMNS)


@torch.library.custom_op("ascend_runtime::minimax_mean_squares", mutates_args=())
def mean_squares(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return float32 [T, 2], those of each row of `q` [T, Q] and of `k` [T, K]."""
    rows = len(q)
    squares = torch.empty(rows, 2, dtype=torch.float32, device=q.device)
    if rows:
        most, wide = _tile(q.shape[1], k.shape[1])
        _mean_squares_kernel[vector_grid(triton.cdiv(rows, most))](
            q,
            k,
            squares,
            rows,
            q.shape[1],
            k.shape[1],
            q.stride(0),
            k.stride(0),
            ROWS=most,
            COLUMNS=wide,
        )
    return squares


@mean_squares.register_fake
def _(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q.new_empty(q.size(0), 2, dtype=torch.float32)


@torch.library.custom_op("ascend_runtime::minimax_norm", mutates_args=())
def _normed(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    squares: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    rows = len(q)
    if rows:
        most, wide = _tile(q.shape[1], k.shape[1])
        _norm_kernel[vector_grid(triton.cdiv(rows, most))](
            q,
            k,
            q_out,
            k_out,
            q_weight,
            k_weight,
            squares,
            rows,
            q.shape[1],
            k.shape[1],
            q.stride(0),
            k.stride(0),
            tp_world,
            q_eps,
            k_eps,
            ROWS=most,
            COLUMNS=wide,
        )
    return q_out, k_out


@_normed.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    squares: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def norm_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.minimax.norm_qk`; columns lie side by side."""
    squares = mean_squares(q, k)
    if tp_world > 1:
        squares = all_reduce(squares)
    q, k = _normed(q, k, q_weight, k_weight, squares, q_eps, k_eps, tp_world)
    return q, k


def norm_qk_fits(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> bool:
    """Whether columns lie side by side, in dtypes that the kernel takes."""
    return all(close(x) for x in (q, k, q_weight, k_weight))


def close(x: torch.Tensor) -> bool:
    """Whether columns lie side by side, in a dtype that the kernels take."""
    return x.dtype in _DTYPES and side_by_side(x)


def _tile(*widths: int) -> tuple[int, int]:
    """Return how many rows and columns a tile has; rows may be wider."""
    wide = max(_NARROWEST, min(_WIDEST, triton.next_power_of_2(max(widths))))
    return TILE // wide, wide
