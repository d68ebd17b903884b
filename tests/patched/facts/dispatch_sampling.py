"""Sampling and slots of the second model runner, chosen at each call."""

from __future__ import annotations

import torch

from facts import fact


@fact
def dispatch_v2_sampling() -> bool:
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_logprobs
    from vllm.v1.worker.gpu.sample.sampler import gumbel_sample

    logits, zero = torch.tensor([[1.0, 3.0, 2.0]]), torch.zeros(1, dtype=torch.int64)
    drawn = gumbel_sample(logits, zero, torch.zeros(1), zero, zero, True)
    told = compute_topk_logprobs(logits, 1, drawn)
    return (drawn.tolist(), told.selected_token_ranks.tolist()) == ([1], [1])


@fact
def dispatch_slot_mapping() -> bool:
    from vllm.v1.worker.gpu.block_table import BlockTables

    return hasattr(BlockTables.compute_slot_mappings, "__wrapped__")
