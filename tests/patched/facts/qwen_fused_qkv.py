"""The worker row of what Qwen3-Next's attention does to its projection."""

from __future__ import annotations

from facts import fact


@fact
def qwen_fused_qkv() -> bool:
    from vllm.model_executor.models.qwen3_next import Qwen3NextAttention

    return "fuses_qkv" in Qwen3NextAttention.forward.__code__.co_names
