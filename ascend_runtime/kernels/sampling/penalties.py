"""Repetition, frequency and presence penalties."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, vector_grid, without_gaps

#: Words of 32 tokens in a tile.
_WORDS: Final = 32


@triton.jit(
    do_not_specialize=[
        "rows",
        "vocab",
        "tiles",
        "logits_stride",
        "mask_stride",
        "counts_stride",
    ]
)
def _penalties_kernel(
    logits,
    requests,
    tokens,
    positions,
    repetitions,
    frequencies,
    presences,
    prompt_mask,
    output_counts,
    rows,
    vocab,
    tiles,
    logits_stride,
    mask_stride,
    counts_stride,
    WORDS: tl.constexpr,
):
    bit = tl.full((32,), 1, tl.int32) << tl.arange(0, 32)
    for task in range(tl.program_id(0), rows * tiles, tl.num_programs(0)):
        row = task // tiles
        request = tl.load(requests + row).to(tl.int64)
        repetition = tl.load(repetitions + request)
        frequency = tl.load(frequencies + request)
        presence = tl.load(presences + request)
        # Two at a time: triton-ascend does not take chains of `or`.
        changed = tl.abs(repetition - 1.0) + (tl.abs(frequency) + tl.abs(presence))
        if changed != 0.0:
            word = (task - row * tiles) * WORDS + tl.arange(0, WORDS)
            column = word[:, None] * 32 + tl.arange(0, 32)[None, :]
            inside = column < vocab
            place = logits + tl.cast(row, tl.int64) * logits_stride + column
            x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            known = output_counts + request * counts_stride + column
            count = tl.load(known, mask=inside, other=0)
            for back in range(0, tl.load(positions + row)):
                drafted = tl.load(tokens + row - back).to(tl.int32)
                count += tl.where(column == drafted, 1, 0)
            packed = tl.load(
                prompt_mask + request * mask_stride + word, mask=word * 32 < vocab, other=0
            )
            prompt = (packed[:, None] & bit[None, :]) != 0
            x = tl.where(prompt | (count > 0), tl.where(x > 0, x / repetition, x * repetition), x)
            x = x - frequency * count.to(tl.float32)
            x = x - presence * tl.where(count > 0, 1.0, 0.0)
            tl.store(place, x.to(logits.dtype.element_ty), mask=inside)


def apply_penalties(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    token_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    repetition_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
    num_speculative_tokens: int,
) -> None:
    """See `ascend_runtime.reference.sampling.apply_penalties`."""
    rows, vocab = logits.shape
    if not rows:
        return
    prompt_bin_mask, output_bin_counts = map(without_gaps, (prompt_bin_mask, output_bin_counts))
    tiles = triton.cdiv(vocab, 32 * _WORDS)
    _penalties_kernel[vector_grid(rows * tiles)](
        logits,
        expanded_idx_mapping.contiguous(),
        token_ids.contiguous(),
        expanded_local_pos.contiguous(),
        repetition_penalty.contiguous(),
        frequency_penalty.contiguous(),
        presence_penalty.contiguous(),
        prompt_bin_mask,
        output_bin_counts,
        rows,
        vocab,
        tiles,
        logits.stride(0),
        prompt_bin_mask.stride(0),
        output_bin_counts.stride(0),
        WORDS=_WORDS,
    )


def apply_penalties_fits(logits: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Whether the columns that are written lie side by side."""
    return side_by_side(logits)
