"""Norms of gated delta nets, chosen at each call."""

from __future__ import annotations

import torch

from facts import fact


@fact
def dispatch_norm() -> bool:
    from vllm.model_executor.layers.fla.ops.l2norm import l2norm_fwd
    from vllm.model_executor.layers.fla.ops.layernorm_guard import rmsnorm_fn

    x = torch.tensor([[3.0, 4.0]])
    length = l2norm_fwd(x)
    normed = rmsnorm_fn(x, torch.ones(2), None)
    scale = 12.5**-0.5
    return torch.allclose(length, x / 5) and torch.allclose(normed, x * scale)
