"""Triton kernels of the rejection sampler; definitions in `ascend_runtime.reference.rejection`."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid
from ascend_runtime.reference.rejection import request_of

#: Columns of the vocabulary in a tile, with and without draft probabilities.
_WIDE: Final = 2048
_NARROW: Final = 1024
#: Uniform numbers in float32 stay inside these: 0 would accept a token of probability 0, and 1
#: would lose a certain one.
_LEAST: Final = torch.finfo(torch.float32).tiny
_MOST: Final = 1 - 2**-24


@triton.jit(do_not_specialize=["requests", "most"])
def _greedy_kernel(
    output,
    cu,
    drafts,
    targets,
    bonus,
    is_greedy,
    requests,
    most,
    COLUMNS: tl.constexpr,
    ALL: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    for row in range(tl.program_id(0), requests, tl.num_programs(0)):
        wanted = 1
        if not ALL:
            wanted = tl.load(is_greedy + row).to(tl.int32)
        if wanted != 0:
            end = tl.load(cu + row)
            start = tl.load(cu + row - 1, mask=row > 0, other=0)
            inside = column < end - start
            draft = tl.load(drafts + start + column, mask=inside, other=0)
            target = tl.load(targets + start + column, mask=inside, other=0).to(tl.int32)
            wrong = tl.where(inside & (draft != target), column, COLUMNS)
            first = tl.min(wrong, axis=0)
            place = output + row * (most + 1)
            tl.store(place + column, target, mask=inside & (column <= first))
            if first == COLUMNS:
                tl.store(place + end - start, tl.load(bonus + row).to(tl.int32))


@triton.jit(do_not_specialize=["requests", "most", "vocab"])
def _random_kernel(
    output,
    cu,
    drafts,
    draft_probs,
    target_probs,
    bonus,
    recovered,
    uniform,
    is_greedy,
    requests,
    most,
    vocab,
    COLUMNS: tl.constexpr,
    HAS_DRAFT_PROBS: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    for row in range(tl.program_id(0), requests, tl.num_programs(0)):
        if tl.load(is_greedy + row).to(tl.int32) == 0:
            end = tl.load(cu + row)
            start = tl.load(cu + row - 1, mask=row > 0, other=0)
            count = end - start
            first = count
            for position in range(0, count):
                draft = tl.load(drafts + start + position).to(tl.int32)
                column_of = tl.minimum(tl.maximum(draft, 0), vocab - 1)
                place = tl.cast(start + position, tl.int64) * vocab + column_of
                ratio = tl.load(target_probs + place)
                likely = 1
                if HAS_DRAFT_PROBS:
                    p = tl.load(draft_probs + place)
                    likely = (p > 0).to(tl.int32)
                    ratio = ratio / tl.where(p > 0, p, 1.0)
                lucky = (ratio >= tl.load(uniform + start + position)).to(tl.int32)
                good = lucky * likely * (draft == column_of).to(tl.int32)
                first = tl.where(good == 0, tl.minimum(first, position), first)
            inside = column < count
            draft = tl.load(drafts + start + column, mask=inside, other=0).to(tl.int32)
            other = tl.load(recovered + start + column, mask=inside, other=0).to(tl.int32)
            token = tl.where(column < first, draft, other)
            place = output + row * (most + 1)
            tl.store(place + column, token, mask=inside & (column <= first))
            if first == count:
                tl.store(place + count, tl.load(bonus + row).to(tl.int32))


@triton.jit(do_not_specialize=["tokens", "vocab"])
def _recover_kernel(
    output,
    requests,
    drafts,
    draft_probs,
    target_probs,
    inv_q,
    tokens,
    vocab,
    WIDTH: tl.constexpr,
    HAS_DRAFT_PROBS: tl.constexpr,
):
    lane = tl.arange(0, WIDTH)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        base = tl.cast(token, tl.int64) * vocab
        noise = tl.load(requests + token).to(tl.int64) * vocab
        draft = tl.load(drafts + token).to(tl.int32)
        best = -1.0
        found = 0
        for first in range(0, vocab, WIDTH):
            inside = first + lane < vocab
            p = tl.load(target_probs + base + first + lane, mask=inside, other=0.0)
            if HAS_DRAFT_PROBS:
                q = tl.load(draft_probs + base + first + lane, mask=inside, other=0.0)
                p = tl.maximum(p - q, 0.0)
            else:
                p = tl.where(lane == draft - first, p * 0.0, p)  # NaN stays NaN
            score = p * tl.load(inv_q + noise + first + lane, mask=inside, other=0.0)
            # NaN is unequal to itself; lanes beyond the vocabulary lose to any token.
            score = tl.where(score == score, score, -1.0)
            score = tl.where(inside, score, -1.0)
            top = tl.max(score, axis=0)
            place = tl.min(tl.where(score == top, lane, WIDTH), axis=0)
            found = tl.where(top > best, first + place, found)
            best = tl.maximum(best, top)
        tl.store(output + token, found)


def greedy(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
    max_spec_len: int,
    **_: Any,
) -> None:
    """See `ascend_runtime.reference.rejection.greedy`."""
    requests = len(cu_num_draft_tokens)
    if not requests:
        return
    _greedy_kernel[vector_grid(requests)](
        output_token_ids,
        cu_num_draft_tokens.contiguous(),
        draft_token_ids.contiguous(),
        target_argmax.contiguous(),
        bonus_token_ids.contiguous(),
        bonus_token_ids if is_greedy is None else is_greedy.contiguous(),
        requests,
        max_spec_len,
        COLUMNS=_columns(max_spec_len),
        ALL=is_greedy is None,
    )


def random(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    recovered_token_ids: torch.Tensor,
    uniform_probs: torch.Tensor,
    is_greedy: torch.Tensor,
    max_spec_len: int,
    vocab_size: int,
    **_: Any,
) -> None:
    """See `ascend_runtime.reference.rejection.random`; uniform numbers are taken as float32."""
    requests = len(cu_num_draft_tokens)
    if not requests:
        return
    _random_kernel[vector_grid(requests)](
        output_token_ids,
        cu_num_draft_tokens.contiguous(),
        draft_token_ids.contiguous(),
        (target_probs if draft_probs is None else draft_probs).contiguous(),
        target_probs.contiguous(),
        bonus_token_ids.contiguous(),
        recovered_token_ids.contiguous(),
        uniform_probs.float().clamp(_LEAST, _MOST).contiguous(),
        is_greedy.contiguous(),
        requests,
        max_spec_len,
        vocab_size,
        COLUMNS=_columns(max_spec_len),
        HAS_DRAFT_PROBS=draft_probs is not None,
    )


def recover(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inv_q: torch.Tensor,
    vocab_size: int,
    *_: Any,
    **__: Any,
) -> None:
    """See `ascend_runtime.reference.rejection.recover`."""
    tokens = len(draft_token_ids)
    if not tokens:
        return
    _recover_kernel[vector_grid(tokens)](
        output_token_ids,
        request_of(cu_num_draft_tokens, tokens).int(),
        draft_token_ids.contiguous(),
        (target_probs if draft_probs is None else draft_probs).contiguous(),
        target_probs.contiguous(),
        inv_q.contiguous(),
        tokens,
        vocab_size,
        WIDTH=_WIDE if draft_probs is None else _NARROW,
        HAS_DRAFT_PROBS=draft_probs is not None,
    )


def _columns(most: int) -> int:
    return max(16, int(triton.next_power_of_2(most + 1)))
