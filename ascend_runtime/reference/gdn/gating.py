"""The gates of gated delta nets, defined in plain torch."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus


def gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Work out how much each token lets a head forget, and how strongly it writes.

    g = -exp(A_log) * softplus(a + dt_bias) and sigmoid(b), in float32.

    Args:
        A_log, dt_bias: [HV], any float.
        a, b: [T, HV], any float; T may be 0.
        beta: softplus(x) is log(1 + exp(beta * x)) / beta,
        threshold: and x where beta * x is above this.

    Returns: g [1, T, HV] in float32, and sigmoid(b) [1, T, HV] of the dtype of b.
    """
    g = decay(A_log, a, dt_bias, beta, threshold)
    return g[None].contiguous(), b.float().sigmoid().to(b.dtype)[None].contiguous()


def olmo_gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    allow_neg_eigval: bool = False,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `gating`; here sigmoid(b) is float32, and doubled if `allow_neg_eigval`."""
    g, strength = gating(A_log, a, b.float(), dt_bias, beta, threshold)
    return g, strength * 2 if allow_neg_eigval else strength


def decay(
    A_log: torch.Tensor, a: torch.Tensor, dt_bias: torch.Tensor, beta: float, threshold: float
) -> torch.Tensor:
    """Return -exp(A_log) * softplus(a + dt_bias), float32 of the shape of a."""
    return -A_log.float().exp() * softplus(a.float() + dt_bias.float(), beta, threshold)
