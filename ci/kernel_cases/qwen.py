"""Attention of Qwen3-Next and Qwen3.5 (16 heads of 256, 2 of k and v, a quarter rotated)."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker

_POSITIONS = 4096


def _split(
    label: str,
    tokens: int,
    dtype: torch.dtype = torch.bfloat16,
    heads: int = 16,
    kv_heads: int = 2,
    head_dim: int = 256,
    rotary: int = 64,
    gate: bool = True,
    sections: tuple[int, ...] = (),
    interleaved: bool = False,
) -> Case:
    def make(maker: Maker) -> Call:
        width = (heads * (1 + gate) + 2 * kv_heads) * head_dim
        angles = maker.uniform(_POSITIONS, rotary // 2) * 6.3
        shape = (3, tokens) if sections else (tokens,)
        args = (
            maker.normal(tokens, width, dtype=dtype),
            maker.normal(head_dim, dtype=dtype) * 0.2,
            maker.normal(head_dim, dtype=dtype) * 0.2,
            torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype),
            maker.integers(0, _POSITIONS, *shape, dtype=torch.int64),
            heads,
            kv_heads,
            head_dim,
            1e-6,
            gate,
            sections,
            interleaved,
        )
        return args, {}

    kind = str(dtype).removeprefix("torch.")
    return Case(
        "qwen.split_qkv_norm_rope",
        f"{label}, {tokens} x {heads}+{kv_heads} of {head_dim} {kind}",
        make,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


_AXES = (11, 11, 10)

CASES = [
    _split("Qwen3-Next", 4096),
    _split("Qwen3-Next", 7),
    _split("Qwen3-Next TP 2", 4096, heads=8, kv_heads=1),
    _split("Qwen3-Next", 300, torch.float32),
    _split("Qwen3.5", 4096, sections=_AXES, interleaved=True),
    _split("Qwen3.5 TP 2", 5, heads=8, kv_heads=1, sections=_AXES, interleaved=True),
    _split("Qwen3.5", 300, torch.float32, sections=_AXES, interleaved=True),
    _split("Qwen3.5 text", 300, torch.float16, heads=24, kv_heads=4),
    _split("sections", 70, head_dim=128, rotary=128, sections=(16, 24, 24), gate=False),
    _split("odd", 70, torch.float32, 3, 3, 40, 20, False, (4, 3, 3)),
    _split("odd", 3, torch.float32, 5, 1, 24, 10),
    _split("wide", 60, torch.float32, 1, 1, 1024, 1024),
]
