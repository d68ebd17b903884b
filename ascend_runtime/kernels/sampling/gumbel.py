"""Drawing tokens with Gumbel noise, and the division by the temperature."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, vector_grid, without_gaps
from ascend_runtime.reference.sampling import LANES

#: Columns of a tile that is only divided.
_WIDTH: Final = 4096


@triton.jit
def _mixed(a, b, c, d, low, high):
    """Ten rounds of Philox-4x32 on vectors of words, as `reference.sampling.uniform` defines it."""
    for _ in tl.static_range(10):
        first = tl.umulhi(a, 0xD2511F53)
        second = tl.umulhi(c, 0xCD9E8D57)
        a, b, c, d = second ^ b ^ low, c * 0xCD9E8D57, first ^ d ^ high, a * 0xD2511F53
        low = low + 0x9E3779B9
        high = high + 0xBB67AE85
    return a, b, c, d


@triton.jit
def _better(
    best,
    found,
    row,
    out,
    first,
    lane,
    vocab,
    divisor,
    word,
    noise,
    WIDTH: tl.constexpr,
    HAS_OUT: tl.constexpr,
):
    """Compare a quarter of a tile, from column `first`, with the best so far; NaN is -inf."""
    column = first + lane
    inside = column < vocab
    x = tl.load(row + column, mask=inside, other=float("-inf")).to(tl.float32) / divisor
    if HAS_OUT:
        tl.store(out + column, x.to(out.dtype.element_ty), mask=inside)
    u = tl.maximum((word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08, 1e-7)
    score = x - tl.log(-tl.log(u)) * noise
    score = tl.where(score == score, score, float("-inf"))
    top = tl.max(score, axis=0)
    at = tl.min(tl.where(score == top, lane, WIDTH), axis=0)
    return tl.maximum(best, top), tl.where(top > best, first + at, found)


@triton.jit(do_not_specialize=["rows", "vocab", "logits_stride", "out_stride"])
def _gumbel_kernel(
    tokens,
    logits,
    requests,
    temperatures,
    seeds,
    positions,
    out,
    rows,
    vocab,
    logits_stride,
    out_stride,
    WIDTH: tl.constexpr,
    DIVIDE: tl.constexpr,
    HAS_OUT: tl.constexpr,
):
    lane = tl.arange(0, WIDTH)
    zero = (lane * 0).to(tl.uint32)
    for task in range(tl.program_id(0), rows, tl.num_programs(0)):
        request = tl.load(requests + task).to(tl.int64)
        temperature = tl.load(temperatures + request).to(tl.float32)
        divisor = 1.0
        if DIVIDE:
            divisor = tl.where(temperature == 0.0, 1.0, temperature)
        noise = tl.where(temperature == 0.0, 0.0, 1.0)
        seed = tl.load(seeds + request)
        low = seed.to(tl.int32).to(tl.uint32, bitcast=True)
        high = (seed >> 32).to(tl.int32).to(tl.uint32, bitcast=True)
        position = tl.load(positions + task).to(tl.int32).to(tl.uint32, bitcast=True)
        row = logits + tl.cast(task, tl.int64) * logits_stride
        place = out + request * out_stride
        best = float("-inf")
        found = 0
        for first in range(0, vocab, 4 * WIDTH):
            counter = (first // 4 + lane).to(tl.uint32, bitcast=True)
            a, b, c, d = _mixed(counter, zero + position, zero, zero, low, high)
            best, found = _better(
                best, found, row, place, first, lane, vocab, divisor, a, noise, WIDTH, HAS_OUT
            )
            best, found = _better(
                best,
                found,
                row,
                place,
                first + WIDTH,
                lane,
                vocab,
                divisor,
                b,
                noise,
                WIDTH,
                HAS_OUT,
            )
            best, found = _better(
                best,
                found,
                row,
                place,
                first + 2 * WIDTH,
                lane,
                vocab,
                divisor,
                c,
                noise,
                WIDTH,
                HAS_OUT,
            )
            best, found = _better(
                best,
                found,
                row,
                place,
                first + 3 * WIDTH,
                lane,
                vocab,
                divisor,
                d,
                noise,
                WIDTH,
                HAS_OUT,
            )
        tl.store(tokens + task, tl.cast(found, tl.int64))


@triton.jit(do_not_specialize=["rows", "vocab", "stride", "tiles"])
def _temperature_kernel(
    logits, requests, temperatures, rows, vocab, stride, tiles, WIDTH: tl.constexpr
):
    for task in range(tl.program_id(0), rows * tiles, tl.num_programs(0)):
        row = task // tiles
        temperature = tl.load(temperatures + tl.load(requests + row).to(tl.int64)).to(tl.float32)
        idle = tl.where(temperature == 0.0, 1.0, temperature) == 1.0
        if not idle:
            column = (task - row * tiles) * WIDTH + tl.arange(0, WIDTH)
            place = logits + tl.cast(row, tl.int64) * stride + column
            x = tl.load(place, mask=column < vocab, other=0.0).to(tl.float32) / temperature
            tl.store(place, x.to(logits.dtype.element_ty), mask=column < vocab)


def gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    processed_logits_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ascend_runtime.reference.sampling.gumbel_sample`."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    logits = without_gaps(logits)
    out = logits if processed_logits_out is None else processed_logits_out
    _gumbel_kernel[vector_grid(rows)](
        tokens,
        logits,
        expanded_idx_mapping.contiguous(),
        temperature.contiguous(),
        seed.contiguous(),
        pos.contiguous(),
        out,
        rows,
        vocab,
        logits.stride(0),
        out.stride(0),
        WIDTH=LANES,
        DIVIDE=apply_temperature,
        HAS_OUT=processed_logits_out is not None,
    )
    return tokens


def apply_temperature(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor
) -> None:
    """See `ascend_runtime.reference.sampling.apply_temperature`."""
    rows, vocab = logits.shape
    if not rows:
        return
    tiles = triton.cdiv(vocab, _WIDTH)
    _temperature_kernel[vector_grid(rows * tiles)](
        logits,
        expanded_idx_mapping.contiguous(),
        temperature.contiguous(),
        rows,
        vocab,
        logits.stride(0),
        tiles,
        WIDTH=_WIDTH,
    )


def gumbel_sample_fits(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    processed_logits_out: torch.Tensor | None = None,
) -> bool:
    """Whether the columns that are written lie side by side."""
    return side_by_side(processed_logits_out)


def apply_temperature_fits(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor
) -> bool:
    """Whether the columns lie side by side."""
    return side_by_side(logits)
