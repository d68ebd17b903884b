"""Triton kernels of sampling; the definitions are in `ascend_runtime.reference.sampling`."""

from ascend_runtime.kernels.sampling.gumbel import apply_temperature, gumbel_sample
from ascend_runtime.kernels.sampling.logprobs import ranks, token_logprobs
from ascend_runtime.kernels.sampling.penalties import apply_penalties
from ascend_runtime.kernels.sampling.update import post_update

__all__ = [
    "apply_penalties",
    "apply_temperature",
    "gumbel_sample",
    "post_update",
    "ranks",
    "token_logprobs",
]
