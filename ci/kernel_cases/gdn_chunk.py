"""Prefills of gated delta nets: Qwen3-Next, also a quarter of it, OLMo-Hybrid, and odd sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ci.kernel_cases import Call, Case, Maker

_RULE = "vllm.model_executor.layers.fla.ops.chunk:chunk_gated_delta_rule"


def _chunk(
    label: str,
    lengths: Sequence[int],
    key_heads: int,
    heads: int,
    keys: int,
    values: int,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 0,
) -> Case:
    """A batch of sequences of these lengths, or of `rows` sequences of the one length."""

    def make(maker: Maker) -> Call:
        batch, tokens = rows or 1, sum(lengths)
        sequences = rows or len(lengths)
        args = (
            maker.normal(batch, tokens, key_heads, keys, dtype=dtype),
            maker.normal(batch, tokens, key_heads, keys, dtype=dtype),
            maker.normal(batch, tokens, heads, values, dtype=dtype),
            maker.uniform(batch, tokens, heads).log() / 8,
            maker.uniform(batch, tokens, heads, dtype=dtype),
        )
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        return args, {
            "initial_state": maker.normal(sequences, heads, values, keys),
            "output_final_state": True,
            "cu_seqlens": None if rows else maker.tensor(starts),
            "use_qk_l2norm_in_kernel": True,
        }

    tolerance = 3e-2 if dtype == torch.bfloat16 else 4e-3
    return Case("gdn.chunk_gated_delta_rule", label, make, tolerance=tolerance, upstream=_RULE)


CASES = [
    _chunk("Qwen3-Next 4096", [4096], 16, 32, 128, 128),
    _chunk("Qwen3-Next TP4 1000+0+3000+96", [1000, 0, 3000, 96], 4, 8, 128, 128),
    _chunk("Qwen3-Next TP4 float16 one token", [1], 4, 8, 128, 128, torch.float16),
    _chunk("OLMo-Hybrid 2048+77", [2048, 77], 30, 30, 96, 192),
    _chunk("K 256 V 130, 65+3", [65, 3], 1, 3, 256, 130),
    _chunk("K 24 V 40, 2 rows of 100", [100], 2, 6, 24, 40, torch.float16, rows=2),
]
