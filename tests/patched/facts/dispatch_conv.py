"""The causal convolutions, chosen at each call."""

from __future__ import annotations

import torch

from facts import fact


@fact
def dispatch_conv() -> bool:
    from vllm.model_executor.layers.mamba.mamba_mixer2 import (
        causal_conv1d_fn,
        causal_conv1d_update,
    )

    weight, states = torch.tensor([[1.0, 10, 100]]), torch.tensor([[[1.0, 2]]])
    new = causal_conv1d_update(torch.tensor([[3.0]]), states, weight)
    loc, line = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    flag = torch.ones(1, dtype=torch.bool)
    x = torch.tensor([[4.0]])
    more = causal_conv1d_fn(x, weight, None, states, loc, line, flag, activation=None)
    return (new.item(), more.item(), states.flatten().tolist()) == (321, 432, [3, 4])
