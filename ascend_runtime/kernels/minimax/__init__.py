"""Triton kernels for MiniMax-M2's norms, which `ascend_runtime.reference.minimax` defines."""

from ascend_runtime.kernels.minimax.norm import norm_qk, norm_qk_fits
from ascend_runtime.kernels.minimax.rope import fused_qkv_norm_rope, fused_qkv_norm_rope_fits

__all__ = ["fused_qkv_norm_rope", "fused_qkv_norm_rope_fits", "norm_qk", "norm_qk_fits"]
