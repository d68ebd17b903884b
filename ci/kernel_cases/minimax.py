"""The norms of MiniMax-M2 (48 query and 8 key heads of 128, half of each rotated), and odd ones."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker


def _double(squares: torch.Tensor) -> torch.Tensor:
    """Add up two ranks that have the same."""
    return squares * 2


def _norm(rows: int, q: int, k: int, dtype: torch.dtype, ranks: int = 1) -> Case:
    def make(maker: Maker) -> Call:
        qkv = maker.normal(rows, q + 2 * k, dtype=dtype)
        weights = maker.normal(q, dtype=dtype), maker.normal(k, dtype=dtype)
        return (qkv[:, :q], qkv[:, q : q + k], *weights, 1e-6, 1e-5, ranks, _double), {}

    return Case("minimax.norm_qk", _label(rows, f"{q} + {k}", dtype), make, **_tolerance(dtype))


def _rope(
    rows: int,
    q_heads: int,
    k_heads: int,
    dtype: torch.dtype,
    ranks: int = 1,
    head: int = 128,
    rotary: int = 64,
    cache: torch.dtype | None = None,
) -> Case:
    def make(maker: Maker) -> Call:
        q, k = q_heads * head, k_heads * head
        args = (
            maker.normal(rows, q + 2 * k, dtype=dtype),
            maker.normal(q, dtype=dtype),
            maker.normal(k, dtype=dtype),
            maker.integers(0, 1000, rows, dtype=torch.int64),
            maker.normal(1000, rotary, dtype=cache or dtype),
            q,
            k,
        )
        return (*args, head, rotary, 1e-6, 1e-5, ranks, _double), {}

    heads = f"{q_heads} + {k_heads} heads of {head} ({rotary} rotated)"
    label = _label(rows, heads, dtype)
    return Case("minimax.fused_qkv_norm_rope", label, make, **_tolerance(dtype))


def _label(rows: int, what: str, dtype: torch.dtype) -> str:
    return f"{rows} x {what} {str(dtype).removeprefix('torch.')}"


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"tolerance": 1e-5 if dtype == torch.float32 else 1e-2}


_BF16, _FP32 = torch.bfloat16, torch.float32

CASES = [
    _norm(4096, 6144, 1024, _BF16),
    _norm(4096, 1536, 256, _BF16, ranks=4),
    _norm(64, 768, 128, _BF16, ranks=8),
    _norm(300, 6144, 1024, _FP32),
    _norm(7, 1100, 33, _FP32, ranks=2),
    _norm(7, 5, 3, torch.float16),
    _rope(4096, 48, 8, _BF16),
    _rope(4096, 12, 2, _BF16, ranks=4),
    _rope(64, 6, 1, _BF16, ranks=8),
    _rope(1, 6, 1, _BF16, ranks=8, cache=_FP32),
    _rope(300, 48, 8, _FP32),
    _rope(70, 3, 1, torch.float16, head=96, rotary=24),
    _rope(5, 9, 3, _FP32, head=80, rotary=80),
    _rope(5, 8, 8, _FP32, head=512, rotary=512),
    _rope(5, 1, 1, _BF16, head=500, rotary=20),
]
