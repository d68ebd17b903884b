"""What the edited gated delta nets (Qwen3-Next, Qwen3.5) ask."""

from ascend_runtime.gdn.layer import (
    after_core_attention,
    core_token_count,
    needs_autotune_warmup,
    split_qkvzba,
)

__all__ = [
    "after_core_attention",
    "core_token_count",
    "needs_autotune_warmup",
    "split_qkvzba",
]
