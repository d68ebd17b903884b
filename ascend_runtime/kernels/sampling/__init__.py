"""Triton kernels of sampling; the definitions are in `ascend_runtime.reference.sampling`."""

from ascend_runtime.kernels.sampling.gumbel import (
    apply_temperature,
    apply_temperature_fits,
    gumbel_sample,
    gumbel_sample_fits,
)
from ascend_runtime.kernels.sampling.logprobs import ranks, token_logprobs
from ascend_runtime.kernels.sampling.penalties import apply_penalties, apply_penalties_fits
from ascend_runtime.kernels.sampling.update import post_update, post_update_fits

__all__ = [
    "apply_penalties",
    "apply_penalties_fits",
    "apply_temperature",
    "apply_temperature_fits",
    "gumbel_sample",
    "gumbel_sample_fits",
    "post_update",
    "post_update_fits",
    "ranks",
    "token_logprobs",
]
