"""Putting sampled tokens into the states of their requests."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import side_by_side, vector_grid, without_gaps


@triton.jit(do_not_specialize=["rows", "vocab", "counts_stride", "sampled_stride", "all_stride"])
def _post_update_kernel(
    states,
    computed,
    last,
    counts,
    sampled,
    num_sampled,
    num_rejected,
    starts,
    all_tokens,
    lengths,
    rows,
    vocab,
    counts_stride,
    sampled_stride,
    all_stride,
    HAS_COUNTS: tl.constexpr,
):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        state = tl.load(states + row).to(tl.int64)
        length = tl.load(lengths + state)
        new = tl.load(num_sampled + row)
        for one in range(0, new):
            token = tl.load(sampled + row * sampled_stride + one)
            place = all_tokens + state * all_stride + length + one
            tl.store(place, token.to(all_tokens.dtype.element_ty))
            tl.store(last + state, token)  # the last of them stays
            if HAS_COUNTS:
                known = (token >= 0) & (token < vocab)
                count = counts + state * counts_stride + token
                tl.store(count, tl.load(count, mask=known, other=0) + 1, mask=known)
        tl.store(lengths + state, length + new)
        query = tl.load(starts + row + 1) - tl.load(starts + row)
        done = tl.load(computed + state) + query - tl.load(num_rejected + row)
        tl.store(computed + state, done)


def post_update(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> None:
    """See `ascend_runtime.reference.sampling.post_update`."""
    rows = len(idx_mapping)
    if not rows:
        return
    sampled_tokens = without_gaps(sampled_tokens)
    counts = total_len if output_bin_counts is None else output_bin_counts
    _post_update_kernel[vector_grid(rows)](
        idx_mapping.contiguous(),
        num_computed_tokens,
        last_sampled_tokens,
        counts,
        sampled_tokens,
        num_sampled.contiguous(),
        num_rejected.contiguous(),
        query_start_loc.contiguous(),
        all_token_ids,
        total_len,
        rows,
        counts.shape[-1],
        counts.stride(0),
        sampled_tokens.stride(0),
        all_token_ids.stride(0),
        HAS_COUNTS=output_bin_counts is not None,
    )


def post_update_fits(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> bool:
    """Whether the states have no gaps within a row, nor single numbers between them."""
    alone = (num_computed_tokens, last_sampled_tokens, total_len)
    return all(one.is_contiguous() for one in alone) and side_by_side(
        all_token_ids, output_bin_counts
    )
