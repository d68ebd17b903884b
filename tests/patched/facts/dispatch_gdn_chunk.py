"""The chunked gated delta rule, chosen at each call."""

from __future__ import annotations

# Registers its facts first: one of them must be asked before vLLM's layers are imported.
from facts import (
    fact,
    foundation,  # noqa: F401
)


@fact
def dispatch_gdn_chunk() -> bool:
    import torch
    from vllm.model_executor.layers.fla.ops.chunk import chunk_gated_delta_rule

    one, zero = torch.ones(1, 1, 1, 1).half(), torch.zeros(1, 1, 1)
    o, _ = chunk_gated_delta_rule(one, one, 3 * one, zero, zero + 1)
    return o.item() == 3
