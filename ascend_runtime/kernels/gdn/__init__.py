"""Triton kernels for gated delta nets; the definitions are in `ascend_runtime.reference.gdn`."""

from ascend_runtime.kernels.gdn.chunk import chunk_gated_delta_rule

__all__ = ["chunk_gated_delta_rule"]
