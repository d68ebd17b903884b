"""Triton kernels for gated delta nets; the definitions are in `ascend_runtime.reference.gdn`."""

from ascend_runtime.kernels.gdn.chunk import chunk_gated_delta_rule
from ascend_runtime.kernels.gdn.gating import gating, olmo_gating
from ascend_runtime.kernels.gdn.recurrent import (
    fused_recurrent_fwd,
    fused_recurrent_fwd_fits,
    fused_recurrent_kernel,
    fused_recurrent_kernel_fits,
    packed_decode,
    packed_decode_fits,
    sigmoid_gating_update,
    sigmoid_gating_update_fits,
)
from ascend_runtime.kernels.gdn.split import split_qkvzba

__all__ = [
    "chunk_gated_delta_rule",
    "fused_recurrent_fwd",
    "fused_recurrent_fwd_fits",
    "fused_recurrent_kernel",
    "fused_recurrent_kernel_fits",
    "gating",
    "olmo_gating",
    "packed_decode",
    "packed_decode_fits",
    "sigmoid_gating_update",
    "sigmoid_gating_update_fits",
    "split_qkvzba",
]
