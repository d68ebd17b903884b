"""Norms of Qwen3-Next (heads of 128) and of odd sizes."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker

_L2NORM = "vllm.model_executor.layers.fla.ops.l2norm:l2norm_fwd"


def _l2norm(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    def make(maker: Maker) -> Call:
        return (maker.normal(*shape, dtype=dtype),), {}

    label = f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
    return Case(
        "norm.l2norm_fwd",
        label,
        make,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        upstream=_L2NORM,
    )


CASES = [
    _l2norm(1, 4096, 16, 128),
    _l2norm(1, 7, 4, 96, dtype=torch.float32),
    _l2norm(3, 8192, dtype=torch.float16),
]
