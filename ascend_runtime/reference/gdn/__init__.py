"""Gated delta nets, defined in plain torch."""

from ascend_runtime.reference.gdn.chunk import chunk_gated_delta_rule

__all__ = ["chunk_gated_delta_rule"]
