"""The projections of Qwen3-Next sorted, defined in plain torch."""

from __future__ import annotations

import torch

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def split_qkvzba(
    qkvz: torch.Tensor, ba: torch.Tensor, hk: int, hv: int, dk: int, dv: int
) -> _Parts:
    """See `ascend_runtime.gdn.split_qkvzba`, which is what vLLM calls."""
    rows, of_v, of_b = qkvz.size(0), hv // hk * dv, hv // hk
    q, k, v, z = torch.split(qkvz.view(rows, hk, 2 * (dk + of_v)), [dk, dk, of_v, of_v], dim=2)
    b, a = torch.split(ba.view(rows, hk, 2 * of_b), of_b, dim=2)
    mixed = torch.cat([x.reshape(rows, hk * x.size(2)) for x in (q, k, v)], dim=1)
    return (mixed, _copy(z).view(rows, hv, dv), _copy(b).view(rows, hv), _copy(a).view(rows, hv))


def _copy(x: torch.Tensor) -> torch.Tensor:
    """With one key head `reshape` would give a view with gaps, which the kernels read wrongly."""
    return x.clone(memory_format=torch.contiguous_format)
