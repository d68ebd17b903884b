"""The norm of queries and keys with the rotation of their heads, after the mean squares."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid
from ascend_runtime.kernels.minimax.norm import TILE, close, mean_squares, scale_of
from ascend_runtime.reference.minimax import AllReduce, check_positions

#: The most heads of a tile.
_HEADS: Final = 8
#: The widest head; a tile has at least two rows, as triton-ascend breaks at one.
_HEAD: Final = 512
#: The least rotation: halves of a tile of fewer columns are mostly padding.
_ROTARY: Final = 16


@triton.jit
def _norm_rope(
    x,
    y,
    weight,
    squares,
    positions,
    cache,
    task,
    rows,
    heads,
    stride,
    head_dim,
    half,
    tp_world,
    eps,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Norm and rotate a tile of rows and heads; `task` counts those of heads fastest."""
    parts = tl.cdiv(heads, HEADS)
    block = task // parts
    first = block * ROWS
    lane = tl.arange(0, ROWS)
    row = first + lane
    head = (task - block * parts) * HEADS + tl.arange(0, HEADS)
    known = (row < rows)[:, None] & (head < heads)[None, :]
    base = first.to(tl.int64)
    source = x + base * stride + lane[:, None] * stride + head[None, :] * head_dim
    width = heads * head_dim
    target = y + base * width + lane[:, None] * width + head[None, :] * head_dim
    scale = scale_of(squares, row, rows, tp_world, eps)[:, None, None]

    column = tl.arange(0, HALF)
    turn = tl.load(positions + row, mask=row < rows, other=0).to(tl.int32)
    place = cache + turn[:, None] * (2 * half) + column[None, :]
    inside = (row < rows)[:, None] & (column < half)[None, :]
    cos = tl.load(place, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    sin = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)[:, None, :]

    mask = known[:, :, None] & (column < half)[None, None, :]
    w_mask = (head < heads)[:, None] & (column < half)[None, :]
    w_place = weight + head[:, None] * head_dim + column[None, :]
    w = tl.load(w_place, mask=w_mask, other=0.0).to(tl.float32)[None, :, :]
    one = tl.load(source[:, :, None] + column[None, None, :], mask=mask, other=0.0)
    one = one.to(tl.float32) * scale * w
    w = tl.load(w_place + half, mask=w_mask, other=0.0).to(tl.float32)[None, :, :]
    two = tl.load(source[:, :, None] + (half + column)[None, None, :], mask=mask, other=0.0)
    two = two.to(tl.float32) * scale * w
    kind = y.dtype.element_ty
    out = target[:, :, None] + column[None, None, :]
    tl.store(out, (one * cos - two * sin).to(kind), mask=mask)
    tl.store(out + half, (two * cos + one * sin).to(kind), mask=mask)

    if REST > 0:
        column = 2 * half + tl.arange(0, REST)
        mask = known[:, :, None] & (column < head_dim)[None, None, :]
        w_mask = (head < heads)[:, None] & (column < head_dim)[None, :]
        w_place = weight + head[:, None] * head_dim + column[None, :]
        w = tl.load(w_place, mask=w_mask, other=0.0).to(tl.float32)[None, :, :]
        tile = tl.load(source[:, :, None] + column[None, None, :], mask=mask, other=0.0)
        tile = tile.to(tl.float32) * scale * w
        tl.store(target[:, :, None] + column[None, None, :], tile.to(kind), mask=mask)


@triton.jit(
    do_not_specialize=[
        "rows",
        "q_heads",
        "k_heads",
        "stride",
        "head_dim",
        "half",
        "tp_world",
        "q_eps",
        "k_eps",
    ]
)
def _norm_rope_kernel(
    qkv,
    q_out,
    k_out,
    q_weight,
    k_weight,
    squares,
    positions,
    cache,
    rows,
    q_heads,
    k_heads,
    stride,
    head_dim,
    half,
    tp_world,
    q_eps,
    k_eps,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    blocks = tl.cdiv(rows, ROWS)
    of_q = blocks * tl.cdiv(q_heads, HEADS)
    of_k = blocks * tl.cdiv(k_heads, HEADS)
    for task in range(tl.program_id(0), of_q + of_k, tl.num_programs(0)):
        if task < of_q:
            _norm_rope(
                qkv,
                q_out,
                q_weight,
                squares,
                positions,
                cache,
                task,
                rows,
                q_heads,
                stride,
                head_dim,
                half,
                tp_world,
                q_eps,
                ROWS,
                HEADS,
                HALF,
                REST,
            )
        else:
            _norm_rope(
                qkv + q_heads * head_dim,
                k_out,
                k_weight,
                squares + 1,
                positions,
                cache,
                task - of_q,
                rows,
                k_heads,
                stride,
                head_dim,
                half,
                tp_world,
                k_eps,
                ROWS,
                HEADS,
                HALF,
                REST,
            )


@torch.library.custom_op("ascend_runtime::minimax_norm_rope", mutates_args=())
def _normed_and_rotated(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    squares: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_dim: int,
    rotary_dim: int,
    q_eps: float,
    k_eps: float,
    tp_world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_positions(positions, qkv)
    rows, q_size, k_size = len(qkv), len(q_weight), len(k_weight)
    q_out, k_out = (qkv.new_empty(rows, size) for size in (q_size, k_size))
    if rows:
        q_heads, k_heads, half = q_size // head_dim, k_size // head_dim, rotary_dim // 2
        wide = triton.next_power_of_2(half)
        rest = triton.next_power_of_2(head_dim - rotary_dim) if rotary_dim < head_dim else 0
        size = triton.next_power_of_2(2 * wide + rest)
        heads = min(_HEADS, triton.next_power_of_2(q_heads), TILE // size // 2)
        most = TILE // size // heads
        parts = triton.cdiv(q_heads, heads) + triton.cdiv(k_heads, heads)
        _norm_rope_kernel[vector_grid(triton.cdiv(rows, most) * parts)](
            qkv,
            q_out,
            k_out,
            q_weight,
            k_weight,
            squares,
            positions.contiguous(),
            cos_sin_cache,
            rows,
            q_heads,
            k_heads,
            qkv.stride(0),
            head_dim,
            half,
            tp_world,
            q_eps,
            k_eps,
            ROWS=most,
            HEADS=heads,
            HALF=wide,
            REST=rest,
        )
    return q_out, k_out


@_normed_and_rotated.register_fake
def _(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    squares: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_dim: int,
    rotary_dim: int,
    q_eps: float,
    k_eps: float,
    tp_world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = qkv.size(0)
    return qkv.new_empty(rows, q_weight.size(0)), qkv.new_empty(rows, k_weight.size(0))


def fused_qkv_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_size: int,
    kv_size: int,
    head_dim: int,
    rotary_dim: int,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.minimax.fused_qkv_norm_rope`; heads of at most 512."""
    q, k, v = torch.split(qkv, [q_size, kv_size, kv_size], dim=-1)
    squares = mean_squares(q, k)
    if tp_world > 1:
        squares = all_reduce(squares)
    q, k = _normed_and_rotated(
        qkv,
        q_weight,
        k_weight,
        squares,
        positions,
        cos_sin_cache,
        head_dim,
        rotary_dim,
        q_eps,
        k_eps,
        tp_world,
    )
    return q, k, v


def fused_qkv_norm_rope_fits(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_size: int,
    kv_size: int,
    head_dim: int,
    rotary_dim: int,
    q_eps: float,
    k_eps: float,
    tp_world: int,
    all_reduce: AllReduce,
) -> bool:
    """Whether a head fits a tile, and columns lie side by side, in dtypes that the kernel takes."""
    sized = head_dim <= _HEAD and rotary_dim >= _ROTARY and cos_sin_cache.is_contiguous()
    return sized and all(close(x) for x in (qkv, q_weight, k_weight, cos_sin_cache))
