"""Operations of sampling, defined in plain torch."""

from __future__ import annotations

from typing import Any, Final

import torch

#: Tokens that take the same word of their random numbers, one behind another.
LANES: Final = 512
_WORD: Final = 0xFFFFFFFF
#: Rows are taken for this many elements at a time where a table of all is needed for a moment.
_CHUNK: Final = 1 << 23


def apply_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """Keep of each row the k highest logits, and of those the likeliest; set the rest to -inf.

    Of what k left, the least likely tokens are dropped whose probabilities add up to at most
    1 - p; the likeliest always stays. All tokens that equal the k-th highest stay.

    Args:
        logits: [N, V], float; may be written in place.
        k: int [N], from 1 to V, or None.
        p: float [N], in (0, 1], or None.

    Returns: [N, V], the dtype of `logits`.
    """
    if k is None and p is None:
        return logits
    ordered, ids = logits.sort(dim=-1)
    if k is not None:
        least = ordered.gather(1, (logits.shape[1] - k.long())[:, None])
        ordered.masked_fill_(ordered < least, float("-inf"))
    if p is not None:
        dropped = ordered.softmax(-1).cumsum(-1) <= 1 - p[:, None]
        dropped[:, -1] = False
        ordered.masked_fill_(dropped, float("-inf"))
    return logits.scatter_(1, ids, ordered)


def gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    processed_logits_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw a token for each row: the argmax of logit / temperature + Gumbel noise.

    The noise depends on seed, position and token alone. Temperature 0 draws without noise, and
    without division. Of equals the lowest id wins; NaN counts as -inf.

    Args:
        logits: [N, V], any float, rows may be strided.
        expanded_idx_mapping: int [N], the place r of each row's request in the tables below.
        temperature: float32 [R].
        seed: int64 [R].
        pos: int [N], below 2^31.
        apply_temperature: whether to divide; otherwise the logits are divided already.
        processed_logits_out: float32 [R, V] or None; row r gets the divided logits.

    Returns: int64 [N].
    """
    request = expanded_idx_mapping.long()
    divisor = temperature[request].float()
    x = logits.float()
    if apply_temperature:
        x = x / torch.where(divisor == 0, 1.0, divisor)[:, None]
    if processed_logits_out is not None:
        processed_logits_out[request] = x.to(processed_logits_out.dtype)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    step = max(1, _CHUNK // logits.shape[1])
    for first in range(0, len(logits), step):
        some = slice(first, first + step)
        u = uniform(seed[request[some]], pos[some], logits.shape[1]).clamp(min=1e-7)
        noise = torch.where(divisor[some] == 0, 0.0, 1.0)[:, None] * -torch.log(-torch.log(u))
        score = x[some] + noise
        tokens[some] = score.masked_fill_(score.isnan(), float("-inf")).argmax(-1)
    return tokens


def uniform(seed: torch.Tensor, pos: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return float32 [N, vocab] in [0, 1), 24 random bits each, from Philox-4x32-10.

    The key is the seed's two words. The counter is (c, pos, 0, 0), and a call gives four words: of
    2048 tokens the first 512 take word 0 of their counters, the next 512 word 1, and so on.

    Args:
        seed: int64 [N].
        pos: int [N].
        vocab: how many tokens there are.
    """
    lanes = torch.arange(min(LANES, vocab), device=seed.device)
    tiles = torch.arange(-(-vocab // (4 * LANES)), device=seed.device)
    counter = (tiles[:, None] * LANES + lanes)[None]
    words = _philox(
        [counter, pos.long()[:, None, None], torch.zeros_like(counter), torch.zeros_like(counter)],
        [(seed & _WORD)[:, None, None], (seed >> 32 & _WORD)[:, None, None]],
    )
    bits = torch.stack(words, 2).flatten(1)[:, :vocab]
    return (bits >> 8).float() * 2.0**-24


def _philox(counter: list[torch.Tensor], key: list[torch.Tensor]) -> list[torch.Tensor]:
    """Philox-4x32-10 on words in int64: Salmon et al., Parallel random numbers, SC 2011."""
    a, b, c, d = (word & _WORD for word in counter)
    k, m = key
    for _ in range(10):
        (high, low), (other_high, other_low) = _multiply(0xD2511F53, a), _multiply(0xCD9E8D57, c)
        a, b, c, d = other_high ^ b ^ k, other_low, high ^ d ^ m, low
        k, m = k + 0x9E3779B9 & _WORD, m + 0xBB67AE85 & _WORD
    return [a, b, c, d]


def _multiply(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low word of a product of two words."""
    upper, lower = word * (factor >> 16), word * (factor & 0xFFFF)
    high = (upper + (lower >> 16)) >> 16
    return high, ((upper & 0xFFFF) << 16) + lower & _WORD


def apply_temperature(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor
) -> None:
    """Divide each row by its request's temperature, in place; 0 and 1 leave a row as it is.

    Args:
        logits: [N, V], any float, rows may be strided.
        expanded_idx_mapping: int [N], the place of each row's request.
        temperature: float32 [R].
    """
    divisor = temperature[expanded_idx_mapping.long()].float()
    divisor = torch.where(divisor == 0, 1.0, divisor)
    logits.copy_(logits.float() / divisor[:, None])


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of some tokens of each row, without a table of all.

    Args:
        logits: [B, V], any float, rows may be strided.
        token_ids: int [B, K].

    Returns: float32 [B, K].
    """
    ids = token_ids.long()
    found = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
    step = max(1, _CHUNK // logits.shape[1])
    for first in range(0, len(logits), step):
        some = slice(first, first + step)
        found[some] = logits[some].float().log_softmax(-1).gather(1, ids[some])
    return found


def ranks(
    output: torch.Tensor,
    logits: torch.Tensor,
    logits_stride: int,
    token_ids: torch.Tensor,
    vocab_size: int,
    **_: Any,
) -> None:
    """Count the tokens of each row that are no less likely than a given one, itself included.

    Args:
        output: int64 [B], written.
        logits: [B, vocab_size], any float; `logits_stride` is the step between rows.
        token_ids: int64 [B].
    """
    logits = logits[:, :vocab_size]
    chosen = logits.gather(1, token_ids.long()[:, None])
    output.copy_((logits >= chosen).sum(-1))


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
    """Make tokens less likely that are in the prompt or the output, in place.

    Row t of request r counts c = output_bin_counts[r] and the drafts before it, which are its last
    p = expanded_local_pos[t] tokens. Tokens in prompt or output: x / repetition if x > 0, else
    x * repetition; then x - frequency * c - presence * (c > 0).

    Args:
        logits: [N, V], float32, rows may be strided.
        expanded_idx_mapping: int [N], the place r of each row's request.
        token_ids: int [N].
        expanded_local_pos: int [N], from 0 to `num_speculative_tokens`.
        repetition_penalty, frequency_penalty, presence_penalty: float32 [R].
        prompt_bin_mask: int32 [R, ceil(V / 32)], a bit for each token of the prompt.
        output_bin_counts: int32 [R, V].
        num_speculative_tokens: the most drafts of a request.
    """
    rows, vocab = logits.shape
    request = expanded_idx_mapping.long()
    counts = output_bin_counts[request]
    row = torch.arange(rows, device=logits.device)
    position = expanded_local_pos.long()
    for back in range(num_speculative_tokens):
        # The draft `back` places before this row's own token, if it has so many.
        drafted = token_ids[(row - back).clamp(min=0)].long()
        own = (back < position) & (drafted >= 0) & (drafted < vocab)  # -1 is a placeholder
        drafted = torch.where(own, drafted, 0)
        counts.scatter_add_(1, drafted[:, None], own.to(counts.dtype)[:, None])
    lane = torch.arange(32, dtype=torch.int32, device=logits.device)
    bits = prompt_bin_mask[request][:, :, None] >> lane & 1
    seen = (bits.flatten(1)[:, :vocab] != 0) | (counts > 0)
    repetition = repetition_penalty[request][:, None]
    x = logits.float()
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x = x - frequency_penalty[request][:, None] * counts
    x = x - presence_penalty[request][:, None] * (counts > 0)
    logits.copy_(x)


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
    """Put a step's tokens into the states of their requests, in place.

    Args:
        idx_mapping: int32 [B], the place s of each request in the states; all different.
        num_computed_tokens: int32 [R], grows by the query's length less the rejected tokens.
        last_sampled_tokens: int64 [R] or [R, 1], gets the last one, if any was sampled.
        output_bin_counts: int32 [R, V], counts those from 0 to V - 1; None on pipeline stages but
            the last.
        sampled_tokens: int64 [B, S + 1], of which the first `num_sampled` count.
        num_sampled, num_rejected: int32 [B].
        query_start_loc: int32 [B + 1].
        all_token_ids: int32 [R, L], gets them behind the `total_len` known ones.
        total_len: int32 [R], grows by `num_sampled`.
    """
    state = idx_mapping.long()
    before = total_len[state]
    last = last_sampled_tokens.view(-1)
    final = sampled_tokens.gather(1, (num_sampled.long() - 1).clamp(min=0)[:, None])[:, 0]
    last[state] = torch.where(num_sampled > 0, final.to(last.dtype), last[state])
    for column in range(sampled_tokens.shape[1]):
        valid = column < num_sampled
        # What is not sampled is written over itself, so that nothing has to wait for a count.
        place = (before + column).long().clamp(max=all_token_ids.shape[1] - 1)
        # Behind the sampled ones lies whatever was in memory, which may be no token.
        token = torch.where(valid, sampled_tokens[:, column], 0)
        known = all_token_ids[state, place]
        all_token_ids[state, place] = torch.where(valid, token.to(known.dtype), known)
        if output_bin_counts is not None:
            vocab = output_bin_counts.shape[1]
            known = valid & (token >= 0) & (token < vocab)
            counted = (state, torch.where(known, token, 0).long())
            output_bin_counts.index_put_(counted, known.to(output_bin_counts.dtype), True)
    total_len[state] = (before + num_sampled).to(total_len.dtype)
    done = torch.diff(query_start_loc)[: len(state)] - num_rejected
    num_computed_tokens[state] += done.to(num_computed_tokens.dtype)
