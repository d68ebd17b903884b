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


def _layer_norm(
    rows: int,
    columns: int,
    size: int,
    dtype: torch.dtype,
    gate: str = "",
    rms: bool = True,
    bias: bool = False,
) -> Case:
    def make(maker: Maker) -> Call:
        x, weight = maker.normal(rows, columns, dtype=dtype), maker.normal(columns, dtype=dtype)
        kwargs = {
            "z": maker.normal(rows, columns, dtype=dtype) if gate else None,
            "group_size": size,
            "norm_before_gate": gate != "first",
            "is_rms_norm": rms,
            "activation": "sigmoid" if gate == "sigmoid" else "swish",
        }
        return (x, weight, maker.normal(columns, dtype=dtype) if bias else None, 1e-6), kwargs

    kind = (
        f"{'rms' if rms else 'layer'}{', bias' if bias else ''}{', gate ' + gate if gate else ''}"
    )
    return Case(
        "norm.layer_norm_fwd",
        f"{rows}x{columns} by {size} {str(dtype).removeprefix('torch.')}, {kind}",
        make,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        upstream="vllm.model_executor.layers.fla.ops.layernorm_guard:layer_norm_fwd",
    )


CASES = [
    _layer_norm(131072, 128, 128, torch.bfloat16, gate="last"),
    _layer_norm(300, 4096, 4096, torch.bfloat16, gate="sigmoid"),
    _layer_norm(7, 480, 96, torch.float32, gate="first", rms=False, bias=True),
    _layer_norm(3, 4096, 4096, torch.float32, gate="last", rms=False, bias=True),
    _layer_norm(70, 100, 100, torch.float32, rms=False),
    _l2norm(1, 4096, 16, 128),
    _l2norm(1, 7, 4, 96, dtype=torch.float32),
    _l2norm(3, 8192, dtype=torch.float16),
]
