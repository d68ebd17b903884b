"""Norms of the gated delta rule, defined in plain torch."""

from __future__ import annotations

import torch


def l2norm_fwd(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Scale the vectors of the last dimension to length 1.

    y = x / sqrt(sum(x^2) + eps), in float32; a vector of zeros stays one.

    Args:
        x: [..., D], any float.
        eps: is added to the sum of squares.
        output_dtype: of the result; that of `x` if not given.

    Returns: as `x`, contiguous.
    """
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return y.to(output_dtype or x.dtype).contiguous()
