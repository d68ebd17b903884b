"""Decodes of gated delta nets: Qwen3-Next, also a quarter of it, OLMo, Kimi, and odd sizes."""

from __future__ import annotations

import math
from typing import Any

import torch

from ci.kernel_cases import Call, Case, Maker, in_place

_OPS = "vllm.model_executor.layers.fla.ops.fused_"
_DELTA = "gated_delta_rule"
#: Key heads, value heads, keys, values.
_NEXT = (16, 32, 128, 128)
_NEXT_TP4 = (4, 8, 128, 128)
_OLMO = (30, 30, 96, 192)
_Sizes = tuple[int, int, int, int]


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-2 if dtype == torch.bfloat16 else 1e-5


def _label(sizes: _Sizes, dtype: torch.dtype, rest: str) -> str:
    return f"{'x'.join(map(str, sizes))} {str(dtype).removeprefix('torch.')}, {rest}"


def _cache(maker: Maker, lines: int, sizes: _Sizes, dtype: torch.dtype, gap: int) -> torch.Tensor:
    """States as in vLLM's cache, whose lines are pages with something else behind the states."""
    _, heads, values, keys = sizes[0], sizes[1], sizes[3], sizes[2]
    size = heads * values * keys
    pages = maker.normal(lines, size + gap, dtype=dtype)
    return pages[:, :size].unflatten(1, (heads, values, keys))


def _tokens(maker: Maker, rows: int, tokens: int, sizes: _Sizes, dtype: torch.dtype) -> list[Any]:
    key_heads, heads, keys, values = sizes
    shapes = ((key_heads, keys), (key_heads, keys), (heads, values))
    return [maker.normal(rows, tokens, *shape, dtype=dtype) for shape in shapes]


def _where(maker: Maker, count: int, steps: int) -> dict[str, torch.Tensor]:
    """Sequences of `steps` tokens, one of them padding; more than one step are drafts."""
    lines = maker.permutation(count * steps).view(count, steps)
    lines[-1] = -1
    where = {
        "cu_seqlens": maker.tensor(list(range(0, count * steps + 1, steps))),
        "ssm_state_indices": lines if steps > 1 else lines[:, 0],
    }
    if steps > 1:
        where["num_accepted_tokens"] = maker.integers(1, steps + 1, count)
    return where


def _recurrent(count: int, steps: int, sizes: _Sizes, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        heads, tokens = sizes[1], count * steps
        return (
            *_tokens(maker, 1, tokens, sizes, dtype),
            maker.uniform(1, tokens, heads).log() / 8,
            maker.uniform(1, tokens, heads, dtype=dtype),
            sizes[2] ** -0.5,
            _cache(maker, tokens, sizes, torch.float32, 64),
        ), {"use_qk_l2norm_in_kernel": True, **_where(maker, count, steps)}

    return Case(
        "gdn.fused_recurrent_fwd",
        _label(sizes, dtype, f"{count} sequences of {steps}"),
        make,
        tolerance=_tolerance(dtype),
        upstream=f"{_OPS}recurrent:fused_recurrent_{_DELTA}_fwd",
    )


def _kernel(count: int, sizes: _Sizes, dtype: torch.dtype, kda: bool, in_line: bool) -> Case:
    key_heads, heads, keys, values = sizes
    block = min(1 << (values - 1).bit_length(), 8)

    def make(maker: Maker) -> Call:
        q, k, v = _tokens(maker, 1, count, sizes, dtype)
        state = _cache(maker, count, sizes, torch.float32, 0)
        shape = (1, count, heads, keys) if kda else (1, count, heads)
        final = state if in_line else maker.empty(count, heads, values, keys)
        where = _where(maker, count, 1)
        lines = where["ssm_state_indices"]
        return (), {
            "q": q,
            "k": k,
            "v": v,
            "g": maker.uniform(*shape).log() / 8,
            "beta": maker.uniform(1, count, heads, dtype=dtype),
            "o": maker.empty(1, count, heads, values, dtype=dtype),
            "h0": state,
            "ht": final,
            "cu_seqlens": where["cu_seqlens"],
            "ssm_state_indices": lines if in_line else None,
            "num_accepted_tokens": None,
            "scale": keys**-0.5,
            "N": count,
            "T": count,
            "B": 1,
            "H": key_heads,
            "HV": heads,
            "K": keys,
            "V": values,
            "BK": 1 << (keys - 1).bit_length(),
            "BV": block,
            "stride_init_state_token": state.stride(0),
            "stride_final_state_token": final.stride(0),
            "stride_indices_seq": lines.stride(0),
            "stride_indices_tok": 1,
            "IS_BETA_HEADWISE": False,
            "USE_QK_L2NORM_IN_KERNEL": True,
            "INPLACE_FINAL_STATE": in_line,
            "IS_KDA": kda,
        }

    kind = "a decay of each key" if kda else "a decay of each head"
    return Case(
        "gdn.fused_recurrent_kernel",
        _label(sizes, dtype, f"{count} sequences, {kind}, {'' if in_line else 'not '}in place"),
        make,
        in_place("o", "ht"),
        tolerance=_tolerance(dtype),
        upstream=f"{_OPS}recurrent:fused_recurrent_{_DELTA}_fwd_kernel",
        grid=lambda call: (1, math.ceil(values / block), count * heads),
    )


def _packed(count: int, sizes: _Sizes, dtype: torch.dtype, states: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        key_heads, heads, keys, values = sizes
        width = 2 * key_heads * keys + heads * values
        lines = maker.permutation(count)
        lines[-1] = -1
        return (
            maker.normal(count, width + 64, dtype=dtype)[:, :width],
            maker.normal(count, heads, dtype=dtype),
            maker.normal(count, heads, dtype=dtype),
            maker.normal(heads),
            maker.normal(heads, dtype=dtype),
            keys**-0.5,
            _cache(maker, count, sizes, states, 64),
            maker.empty(count, 1, heads, values, dtype=dtype),
            lines,
        ), {"use_qk_l2norm_in_kernel": True}

    return Case(
        "gdn.packed_decode",
        _label(sizes, dtype, f"{count} sequences, states {str(states).removeprefix('torch.')}"),
        make,
        tolerance=_tolerance(dtype),
        upstream=f"{_OPS}recurrent:fused_recurrent_{_DELTA}_packed_decode",
    )


def _sigmoid(count: int, steps: int, sizes: _Sizes, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        heads, tokens = sizes[1], count * steps
        return (
            maker.normal(heads),
            maker.normal(tokens, heads, dtype=dtype),
            maker.normal(tokens, heads, dtype=dtype),
            maker.normal(heads, dtype=dtype),
            *_tokens(maker, 1, tokens, sizes, dtype),
        ), {
            "initial_state": _cache(maker, tokens, sizes, dtype, 64),
            "use_qk_l2norm_in_kernel": True,
            **_where(maker, count, steps),
        }

    return Case(
        "gdn.sigmoid_gating_update",
        _label(sizes, dtype, f"{count} sequences of {steps}"),
        make,
        tolerance=_tolerance(dtype),
        upstream=f"{_OPS}sigmoid_gating:fused_sigmoid_gating_delta_rule_update",
    )


def _gating(rows: int, heads: int, dtype: torch.dtype, olmo: bool = False) -> Case:
    def make(maker: Maker) -> Call:
        return (
            maker.normal(heads),
            maker.normal(rows, heads, dtype=dtype) * 9,
            maker.normal(rows, heads, dtype=dtype),
            maker.normal(heads, dtype=dtype),
        ), {"allow_neg_eigval": True} if olmo else {}

    models = "vllm.model_executor.models."
    theirs = "olmo_hybrid:fused_olmo_hybrid_gdn_gating" if olmo else "qwen3_next:fused_gdn_gating"
    return Case(
        "gdn.olmo_gating" if olmo else "gdn.gating",
        f"{rows}x{heads} {str(dtype).removeprefix('torch.')}",
        make,
        tolerance=_tolerance(dtype),
        upstream=models + theirs,
    )


def _split(rows: int, sizes: _Sizes, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        key_heads, heads, keys, values = sizes
        qkvz = maker.normal(rows, 2 * (key_heads * keys + heads * values), dtype=dtype)
        return (qkvz, maker.normal(rows, 2 * heads, dtype=dtype), *sizes), {}

    return Case("gdn.split_qkvzba", _label(sizes, dtype, f"{rows} rows"), make, tolerance=0)


CASES = [
    _recurrent(64, 1, _NEXT, torch.bfloat16),
    _recurrent(16, 4, _NEXT_TP4, torch.bfloat16),
    _recurrent(16, 1, _OLMO, torch.bfloat16),
    _recurrent(5, 3, (2, 6, 24, 40), torch.float32),
    _recurrent(2, 1, (1, 1, 256, 256), torch.float32),
    _kernel(64, (32, 32, 128, 128), torch.bfloat16, kda=True, in_line=True),
    _kernel(3, (2, 4, 24, 40), torch.float32, kda=False, in_line=False),
    _packed(256, _NEXT, torch.bfloat16, torch.float32),
    _packed(64, _NEXT_TP4, torch.bfloat16, torch.bfloat16),
    _packed(3, (2, 4, 24, 40), torch.float32, torch.float32),
    _sigmoid(64, 1, _NEXT, torch.bfloat16),
    _sigmoid(16, 4, _NEXT_TP4, torch.bfloat16),
    _sigmoid(5, 3, (2, 6, 24, 40), torch.float32),
    _gating(16384, 32, torch.bfloat16),
    _gating(5, 8, torch.bfloat16),
    _gating(70, 30, torch.float32, olmo=True),
    _split(4096, _NEXT, torch.bfloat16),
    _split(37, (1, 2, 128, 128), torch.bfloat16),
    _split(5, (2, 6, 24, 40), torch.float32),
]
