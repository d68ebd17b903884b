"""Gated delta nets, defined in plain torch."""

from ascend_runtime.reference.gdn.chunk import chunk_gated_delta_rule
from ascend_runtime.reference.gdn.gating import gating, olmo_gating
from ascend_runtime.reference.gdn.recurrent import (
    fused_recurrent_fwd,
    fused_recurrent_kernel,
    packed_decode,
    sigmoid_gating_update,
)
from ascend_runtime.reference.gdn.split import split_qkvzba

__all__ = [
    "chunk_gated_delta_rule",
    "fused_recurrent_fwd",
    "fused_recurrent_kernel",
    "gating",
    "olmo_gating",
    "packed_decode",
    "sigmoid_gating_update",
    "split_qkvzba",
]
