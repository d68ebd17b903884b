"""The recurrent gated delta rule and its gates, chosen at each call."""

from __future__ import annotations

# Registers its facts first: one of them must be asked before vLLM's layers are imported.
from facts import (
    fact,
    foundation,  # noqa: F401
)


@fact
def dispatch_gdn_recurrent() -> bool:
    import torch
    from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule

    one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1)
    line = torch.zeros(1, dtype=torch.int32)
    o, state = fused_recurrent_gated_delta_rule(
        one, one, 3 * one, zero, zero + 1, 1.0, one.clone(), ssm_state_indices=line
    )
    return o.item() == state.item() == 3
