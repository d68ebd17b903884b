"""The kernels of vLLM's rejection sampler, defined in plain torch.

B requests have N draft tokens together; request i has those from `cu[i - 1]` (0 for the first) to
`cu[i]`, at most S. All write in place, and touch nothing but what is said. What has one dimension
may have a second one of size 1.
"""

from __future__ import annotations

from typing import Any

import torch

#: Scores of recovered tokens are taken for this many elements of [tokens, vocabulary] at a time.
_CHUNK = 1 << 24


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
    """Emit the target's best tokens up to and with the first that the draft did not foresee.

    Args:
        output_token_ids: int32 [B, S + 1], filled with -1; the rows of greedy requests are written.
            If all drafts are right, the bonus token follows them.
        cu_num_draft_tokens: int32 [B].
        draft_token_ids: int32 [N].
        target_argmax: int64 [N].
        bonus_token_ids: int32 [B, 1].
        is_greedy: bool [B]; None: all are.
        max_spec_len: S.
    """
    target_argmax = target_argmax.view(-1)
    wrong = draft_token_ids.view(-1) != target_argmax
    _emit(
        output_token_ids,
        cu_num_draft_tokens,
        target_argmax,
        wrong,
        bonus_token_ids,
        is_greedy,
        max_spec_len,
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
    """Accept draft tokens with probability target / draft; the first lost one is replaced.

    A token is accepted if its draft probability is above 0 (it counts as 1 without `draft_probs`)
    and target / draft >= the uniform number. An id that is no token, as the placeholder -1, is
    lost. (A uniform number of 0 accepts a token of target probability 0, as vLLM's does; the kernel
    takes the least float32 for it.)

    Args:
        output_token_ids, cu_num_draft_tokens, draft_token_ids, bonus_token_ids, max_spec_len: as
            for `greedy`; here the rows of requests that are not greedy are written.
        draft_probs: float32 [N, vocab_size], or None.
        target_probs: float32 [N, vocab_size].
        recovered_token_ids: int32 [N], what `recover` found.
        uniform_probs: float64 [N], in [0, 1).
        is_greedy: bool [B].
        vocab_size: V.
    """
    draft_token_ids = draft_token_ids.view(-1)
    column = draft_token_ids.clamp(0, vocab_size - 1).long()[:, None]
    ratio = target_probs.view(-1, vocab_size).gather(1, column)[:, 0]
    possible = (draft_token_ids >= 0) & (draft_token_ids < vocab_size)
    if draft_probs is not None:
        draft = draft_probs.view(-1, vocab_size).gather(1, column)[:, 0]
        possible &= draft > 0
        ratio = ratio / draft
    accepted = possible & (ratio.double() >= uniform_probs)
    _emit(
        output_token_ids,
        cu_num_draft_tokens,
        torch.where(accepted, draft_token_ids, recovered_token_ids.view(-1)),
        ~accepted,
        bonus_token_ids,
        ~is_greedy,
        max_spec_len,
    )


def expand(
    output: torch.Tensor,
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: float,
    replace_to: float,
    **_: Any,
) -> None:
    """Repeat each request's value for its tokens, with one value replaced by another.

    Args:
        output: [N], the dtype of `x`.
        x: [B], any dtype; integers are copied exactly.
        cu_num_tokens: int32 [B].
        replace_from, replace_to: a value of `x` and what is written in its place.
    """
    if not len(x):
        return
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    requests = request_of(cu_num_tokens, len(output))
    known = values[requests.clamp(max=len(x) - 1)]
    output.copy_(torch.where(requests < len(x), known, output))


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
    """Draw a token from what the target has more than the draft, for each draft token.

    It is the argmax of p / q with q exponentially distributed, the lowest id of equals, where p is
    max(target - draft, 0), or the target without the draft token if there are no draft
    probabilities. Without any p above 0, or with NaN for all, it is 0.

    Args:
        output_token_ids: int32 or int64 [N], written.
        cu_num_draft_tokens, draft_token_ids, draft_probs, target_probs, vocab_size: as for
            `random`; none of them changes.
        inv_q: float32 [B, vocab_size], 1 / q of each request.
    """
    output, draft_token_ids = output_token_ids.view(-1), draft_token_ids.view(-1)
    tokens = len(draft_token_ids)
    requests = request_of(cu_num_draft_tokens, tokens)
    step = max(1, _CHUNK // vocab_size)
    for first in range(0, tokens, step):
        some = slice(first, first + step)
        if draft_probs is None:
            p = target_probs[some].clone()
            ids = draft_token_ids[some].long()[:, None]
            column = ids.clamp(0, vocab_size - 1)
            drafted = p.gather(1, column)
            # Times 0, so that NaN stays NaN.
            p.scatter_(1, column, torch.where(ids == column, drafted * 0.0, drafted))
        else:
            p = (target_probs[some] - draft_probs[some]).clamp(min=0)
        score = p * inv_q[requests[some]]
        score.masked_fill_(score.isnan(), -1.0)
        output[some] = score.argmax(-1).to(output.dtype)


def request_of(cu: torch.Tensor, count: int) -> torch.Tensor:
    """Return int64 [count], the request that each token belongs to; len(cu) beyond the last."""
    return torch.searchsorted(cu, torch.arange(count, dtype=cu.dtype, device=cu.device), right=True)


def _emit(
    output: torch.Tensor,
    cu: torch.Tensor,
    tokens: torch.Tensor,
    rejected: torch.Tensor,
    bonus: torch.Tensor,
    rows: torch.Tensor | None,
    most: int,
) -> None:
    """Write each row's tokens up to and with the first rejected one, else all and the bonus."""
    count = torch.diff(cu, prepend=cu.new_zeros(1))
    column = torch.arange(most + 1, dtype=cu.dtype, device=cu.device)
    inside = column < count[:, None]
    # A row of 0 tokens has no place of its own; what is read for it is not used.
    place = ((cu - count)[:, None] + column).clamp(max=max(len(tokens) - 1, 0)).long()
    if not len(tokens):
        tokens, rejected = tokens.new_zeros(1), rejected.new_zeros(1)
    ends = torch.where(inside & rejected[place], column, count[:, None]).amin(1, keepdim=True)
    bonus = bonus.view(-1)[: len(cu), None].to(output.dtype)
    written = torch.where(inside, tokens[place].to(output.dtype), bonus)
    chosen = (inside & (column <= ends)) | ((column == count[:, None]) & (ends == count[:, None]))
    if rows is not None:
        chosen &= rows.view(-1)[: len(cu), None]
    output.copy_(torch.where(chosen, written, output))
