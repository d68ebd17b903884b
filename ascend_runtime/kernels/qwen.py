"""Split, norm and rotary embedding of Qwen3-Next's attention in one Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.device import cores
from ascend_runtime.kernels.launch import vector_grid, without_gaps
from ascend_runtime.reference.qwen import Parts, check_shapes

#: Elements of a tile, and the widest head, a tile of its own.
_TILE: Final = 2048
_WIDEST: Final = 1024


@triton.jit
def _rounded(x, to):
    """As the dtype of the pointer `to` has it."""
    return x.to(to.dtype.element_ty).to(tl.float32)


@triton.jit
def _norm_rope(
    qkv,
    into,
    weight,
    into_copy,
    cos_sin,
    positions,
    tokens,
    heads,
    head_dim,
    half,
    stride,
    step,
    copy,
    position_stride,
    height,
    height_end,
    width,
    eps,
    first_task,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    COPY: tl.constexpr,
    AXES: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Do all heads of q, with the gate as the copy, or of k, with v as the copy.

    A task is a token and up to HEADS of its heads: the angles are then rows of a table, at places
    that are scalars. A head is three parts: two halves that are rotated, and the rest.
    """
    angle = tl.arange(0, HALF)
    rest = 2 * half + tl.arange(0, REST)
    whole = tl.arange(0, HEAD)
    in_half, in_rest, in_head = angle < half, rest < head_dim, whole < head_dim
    weight_a = 1.0 + tl.load(weight + angle, mask=in_half, other=0.0).to(tl.float32)
    weight_b = 1.0 + tl.load(weight + half + angle, mask=in_half, other=0.0).to(tl.float32)
    weight_rest = 1.0 + tl.load(weight + rest, mask=in_rest, other=0.0).to(tl.float32)
    if AXES == 3:
        if INTERLEAVED:
            axis = angle % 3
            second = (axis == 1) & (angle < 3 * height)
            third = (axis == 2) & (angle < 3 * width)
        else:
            second = (angle >= height) & (angle < height_end)
            third = angle >= height_end
    groups = tl.cdiv(heads, HEADS)
    for task in range(first_task, tokens * groups, tl.num_programs(0)):
        token = task // groups
        head = (task - token * groups) * HEADS + tl.arange(0, HEADS)
        row = tl.cast(token, tl.int64)
        source = qkv + row * stride
        target = row * heads * head_dim
        known = (head < heads)[:, None]
        mask, mask_rest = known & in_half[None, :], known & in_rest[None, :]
        place = (head * step)[:, None] + angle[None, :]
        place_rest = (head * step)[:, None] + rest[None, :]
        a = tl.load(source + place, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(source + half + place, mask=mask, other=0.0).to(tl.float32)
        c = tl.load(source + place_rest, mask=mask_rest, other=0.0).to(tl.float32)
        total = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1) + tl.sum(c * c, axis=1)
        scale = tl.rsqrt(total / head_dim + eps)[:, None]
        a = _rounded(a * scale * weight_a[None, :], into)
        b = _rounded(b * scale * weight_b[None, :], into)
        c = c * scale * weight_rest[None, :]

        angles = cos_sin + tl.load(positions + token) * (2 * half) + angle
        cos = tl.load(angles, mask=in_half, other=0.0)
        sin = tl.load(angles + half, mask=in_half, other=0.0)
        if AXES == 3:
            angles = cos_sin + tl.load(positions + position_stride + token) * (2 * half) + angle
            cos = tl.where(second, tl.load(angles, mask=in_half, other=0.0), cos)
            sin = tl.where(second, tl.load(angles + half, mask=in_half, other=0.0), sin)
            angles = cos_sin + tl.load(positions + 2 * position_stride + token) * (2 * half) + angle
            cos = tl.where(third, tl.load(angles, mask=in_half, other=0.0), cos)
            sin = tl.where(third, tl.load(angles + half, mask=in_half, other=0.0), sin)
        cos = _rounded(cos, into)[None, :]
        sin = _rounded(sin, into)[None, :]
        first = _rounded(a * cos, into) - _rounded(b * sin, into)
        other = _rounded(b * cos, into) + _rounded(a * sin, into)

        target_a = into + target + (head * head_dim)[:, None] + angle[None, :]
        target_c = into + target + (head * head_dim)[:, None] + rest[None, :]
        tl.store(target_a, first.to(into.dtype.element_ty), mask=mask)
        tl.store(target_a + half, other.to(into.dtype.element_ty), mask=mask)
        tl.store(target_c, c.to(into.dtype.element_ty), mask=mask_rest)
        if COPY:
            mask_head = known & in_head[None, :]
            place = (head * step)[:, None] + whole[None, :]
            tile = tl.load(source + copy + place, mask=mask_head, other=0.0)
            target_copy = into_copy + target + (head * head_dim)[:, None] + whole[None, :]
            tl.store(target_copy, tile, mask=mask_head)


@triton.jit(
    do_not_specialize=[
        "tokens",
        "heads",
        "kv_heads",
        "head_dim",
        "half",
        "stride",
        "position_stride",
        "height",
        "height_end",
        "width",
        "eps",
    ]
)
def _split_kernel(
    qkv,
    q_weight,
    k_weight,
    cos_sin,
    positions,
    q,
    k,
    v,
    gate,
    tokens,
    heads,
    kv_heads,
    head_dim,
    half,
    stride,
    position_stride,
    height,
    height_end,
    width,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    GATE: tl.constexpr,
    AXES: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    step = head_dim
    if GATE:
        step = 2 * head_dim
    _norm_rope(
        qkv,
        q,
        q_weight,
        gate,
        cos_sin,
        positions,
        tokens,
        heads,
        head_dim,
        half,
        stride,
        step,
        head_dim,
        position_stride,
        height,
        height_end,
        width,
        eps,
        tl.program_id(0),
        HEADS,
        HEAD,
        HALF,
        REST,
        GATE,
        AXES,
        INTERLEAVED,
    )
    # From the other end: the last programs may have had a task less.
    _norm_rope(
        qkv + heads * step,
        k,
        k_weight,
        v,
        cos_sin,
        positions,
        tokens,
        kv_heads,
        head_dim,
        half,
        stride,
        head_dim,
        kv_heads * head_dim,
        position_stride,
        height,
        height_end,
        width,
        eps,
        tl.num_programs(0) - 1 - tl.program_id(0),
        KV_HEADS,
        HEAD,
        HALF,
        REST,
        True,
        AXES,
        INTERLEAVED,
    )


def split_qkv_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    gate: bool,
    mrope_section: Sequence[int] = (),
    mrope_interleaved: bool = False,
) -> Parts:
    """See `ascend_runtime.reference.qwen.split_qkv_norm_rope`; heads that `takes_heads` takes."""
    sizes = (num_heads, num_kv_heads, head_dim)
    check_shapes(qkv, cos_sin_cache, positions, *sizes, gate, mrope_section)
    half = cos_sin_cache.size(1) // 2
    if not takes_heads(head_dim, 2 * half):
        raise RuntimeError(f"split_qkv_norm_rope: {head_dim} numbers of a head fit no tile")
    tokens = len(qkv)
    qkv, positions = without_gaps(qkv), without_gaps(positions)
    q, k, v = (qkv.new_empty(tokens, n * head_dim) for n in (num_heads, num_kv_heads, num_kv_heads))
    gates = torch.empty_like(q) if gate else None
    time, height, width = mrope_section or (0, 0, 0)
    block, kv_block = (_heads_of_a_task(tokens, n, head_dim) for n in (num_heads, num_kv_heads))
    if tokens:
        _split_kernel[vector_grid(tokens * triton.cdiv(num_heads, block))](
            qkv,
            q_weight.contiguous(),
            k_weight.contiguous(),
            cos_sin_cache.contiguous(),
            positions,
            q,
            k,
            v,
            q if gates is None else gates,
            tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            half,
            qkv.stride(0),
            positions.stride(0),
            height if mrope_interleaved else time,
            time + height,
            width,
            eps,
            HEADS=block,
            KV_HEADS=kv_block,
            HEAD=triton.next_power_of_2(head_dim),
            HALF=triton.next_power_of_2(half),
            REST=triton.next_power_of_2(max(1, head_dim - 2 * half)),
            GATE=gate,
            AXES=3 if positions.dim() == 2 else 1,
            INTERLEAVED=mrope_interleaved,
        )
    return q, k, v, gates


def split_qkv_norm_rope_fits(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *rest: object,
    **keywords: object,
) -> bool:
    """See `takes_heads`."""
    return takes_heads(head_dim, cos_sin_cache.size(1))


def takes_heads(head_dim: int, rotary_dim: int) -> bool:
    """Whether a head fits a tile, and something of it is rotated."""
    return 0 < rotary_dim <= head_dim <= _WIDEST


def _heads_of_a_task(tokens: int, heads: int, head_dim: int) -> int:
    """As many as a tile has room for; with few tokens one, for all cores to have work."""
    if tokens < cores()[1]:
        return 1
    room, wanted = (triton.next_power_of_2(size) for size in (head_dim, heads))
    return max(1, min(_TILE // int(room), int(wanted)))
