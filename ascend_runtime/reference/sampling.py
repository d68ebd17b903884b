"""Operations of sampling, defined in plain torch."""

from __future__ import annotations

import torch


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
