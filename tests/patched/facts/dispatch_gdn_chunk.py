"""The chunked gated delta rule, chosen at each call."""

from __future__ import annotations

from facts import fact


@fact
def dispatch_gdn_chunk() -> bool:
    import torch
    from vllm.model_executor.layers.fla.ops.chunk import chunk_gated_delta_rule

    one, zero = torch.ones(1, 1, 1, 1).half(), torch.zeros(1, 1, 1)
    o, _ = chunk_gated_delta_rule(one, one, 3 * one, zero, zero + 1)
    return o.item() == 3
