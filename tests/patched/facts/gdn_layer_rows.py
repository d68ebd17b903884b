"""The worker rows of what surrounds the kernels of gated delta nets."""

from __future__ import annotations

from types import CodeType

from facts import fact


def _code(*path: str) -> CodeType:
    from vllm.model_executor.models import qwen3_next

    found = qwen3_next
    for name in path:
        found = getattr(found, name)
    return found.__code__


@fact
def gdn_projected_rows() -> bool:
    return "projected" in _code("Qwen3NextGatedDeltaNet", "forward").co_varnames


@fact
def gdn_spec_gates() -> bool:
    return "a_spec" in _code("Qwen3NextGatedDeltaNet", "_forward_core").co_varnames


@fact
def gdn_split_qkvzba() -> bool:
    return "split_qkvzba" in _code("Qwen3NextGatedDeltaNet", "forward").co_names


@fact
def gdn_core_token_count() -> bool:
    return "core_token_count" in _code("Qwen3NextGatedDeltaNet", "_forward_core").co_names


@fact
def gdn_save_kv_layer() -> bool:
    return "after_core_attention" in _code("gdn_attention_core").co_names


@fact
def gdn_autotune_warmup() -> bool:
    names = _code("Qwen3NextGatedDeltaNet", "_warmup_prefill_kernels").co_names
    return "needs_autotune_warmup" in names


@fact
def sp_attn_output_buffer() -> bool:
    return "attn_output_buffer" in _code("Qwen3NextDecoderLayer", "forward").co_names
