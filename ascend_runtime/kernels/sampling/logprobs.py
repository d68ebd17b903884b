"""Log-probabilities of some tokens, and their ranks."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, vector_grid, without_gaps

#: Columns of a tile.
_WIDTH: Final = 2048


@triton.jit(do_not_specialize=["rows", "vocab", "stride", "wanted"])
def _logprobs_kernel(out, logits, ids, rows, vocab, stride, wanted, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        base = logits + tl.cast(row, tl.int64) * stride
        # Finite, so that a tile of -inf alone adds nothing.
        most = -3.4028234663852886e38
        total = 0.0
        for first in range(0, vocab, WIDTH):
            inside = first + lane < vocab
            x = tl.load(base + first + lane, mask=inside, other=float("-inf")).to(tl.float32)
            top = tl.maximum(most, tl.max(x, axis=0))
            total = total * tl.exp(most - top) + tl.sum(tl.exp(x - top), axis=0)
            most = top
        scale = tl.log(total)
        for one in range(0, wanted):
            token = tl.load(ids + row * wanted + one)
            x = tl.load(base + token).to(tl.float32)
            tl.store(out + row * wanted + one, x - most - scale)


@triton.jit(do_not_specialize=["rows", "vocab", "stride"])
def _ranks_kernel(out, logits, ids, rows, vocab, stride, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        base = logits + tl.cast(row, tl.int64) * stride
        chosen = tl.load(base + tl.load(ids + row)).to(tl.float32)
        count = 0
        for first in range(0, vocab, WIDTH):
            inside = first + lane < vocab
            x = tl.load(base + first + lane, mask=inside, other=0.0).to(tl.float32)
            count += tl.sum(tl.where(inside & (x >= chosen), 1, 0), axis=0)
        tl.store(out + row, tl.cast(count, tl.int64))


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """See `ascend_runtime.reference.sampling.token_logprobs`."""
    rows, vocab = logits.shape
    logits = without_gaps(logits)
    ids = token_ids.to(torch.int64).contiguous()
    found = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
    if found.numel():
        _logprobs_kernel[vector_grid(rows)](
            found, logits, ids, rows, vocab, logits.stride(0), ids.shape[1], WIDTH=_WIDTH
        )
    return found


def ranks(
    output: torch.Tensor,
    logits: torch.Tensor,
    logits_stride: int,
    token_ids: torch.Tensor,
    vocab_size: int,
    **_: Any,
) -> None:
    """See `ascend_runtime.reference.sampling.ranks`."""
    if not side_by_side(logits):
        logits = logits.contiguous()
        logits_stride = logits.stride(0)
    if len(output):
        _ranks_kernel[vector_grid(len(output))](
            output,
            logits,
            token_ids.contiguous(),
            len(output),
            vocab_size,
            logits_stride,
            WIDTH=_WIDTH,
        )
