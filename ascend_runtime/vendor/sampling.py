"""Sampling by operators of the plugin's library `_C_ascend`.

Its operators have no public schemas: what they take is known from the plugin's public documents,
and awaits a run on an NPU.
"""

from __future__ import annotations

import torch


def apply_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """See `ascend_runtime.reference.sampling.apply_top_k_top_p`; the result is a new tensor."""
    if k is None and p is None:
        return logits
    narrow = None if k is None else k.to(torch.int32)
    masked: torch.Tensor = torch.ops._C_ascend.npu_apply_top_k_top_p(logits, k=narrow, p=p)
    return masked


def apply_top_k_top_p_fits(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> bool:
    """Whether it is a table of floats without gaps, and p is of its dtype."""
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return (
        logits.dim() == 2
        and logits.dtype in floats
        and logits.is_contiguous()
        and (p is None or p.dtype == logits.dtype)
    )
