"""Multimodal embeddings."""

from __future__ import annotations

from types import SimpleNamespace

from facts import fact


@fact
def multimodal_mask_on_host() -> bool:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = SimpleNamespace(pin_memory=False, input_batch=SimpleNamespace(req_ids=[]))
    step = SimpleNamespace(total_num_scheduled_tokens=3)
    embeddings, mask = GPUModelRunner._gather_mm_embeddings(runner, step)
    return embeddings == [] and mask.tolist() == [False, False, False]
