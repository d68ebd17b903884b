"""The gated delta nets of Qwen3-Next, Qwen3.5 and OLMo: what surrounds their kernels."""

from ascend_runtime.gdn.chunks import GDNChunkMeta, build_chunk_metadata
from ascend_runtime.gdn.layer import (
    after_core_attention,
    core_token_count,
    needs_autotune_warmup,
    split_qkvzba,
)

__all__ = [
    "GDNChunkMeta",
    "after_core_attention",
    "build_chunk_metadata",
    "core_token_count",
    "needs_autotune_warmup",
    "split_qkvzba",
]
