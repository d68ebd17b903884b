"""The worker row of the chunks of gated delta nets."""

from __future__ import annotations

from facts import fact


@fact
def gdn_chunk_metadata() -> bool:
    import inspect

    from vllm.model_executor.layers.fla.ops import chunk_gated_delta_rule

    return "chunk_offsets" in inspect.signature(chunk_gated_delta_rule).parameters


@fact
def gdn_chunk_builder() -> bool:
    from test_gdn_argsort import build

    return build([4, 8], [-1, -1]).chunk_offsets.tolist() == [0, 1, 2]
