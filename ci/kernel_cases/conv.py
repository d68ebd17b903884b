"""Convolutions of Qwen3-Next (8192 channels, 4 taps) and of odd sizes."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker, in_place

_MODULE = "vllm.model_executor.layers.mamba.ops.causal_conv1d:"


def _states(maker: Maker, lines: int, channels: int, columns: int, dtype: torch.dtype):
    return maker.normal(lines, columns, channels, dtype=dtype).transpose(1, 2)


def _prefill(lengths: list[int], channels: int, width: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        batch, tokens = len(lengths), sum(lengths)
        args = (
            maker.normal(tokens, channels, dtype=dtype).T,
            maker.normal(channels, width, dtype=dtype),
            maker.normal(channels, dtype=dtype),
            _states(maker, batch + 2, channels, width - 1, dtype),
            maker.tensor([sum(lengths[:end]) for end in range(batch + 1)]),
            maker.permutation(batch + 2)[:batch],
            maker.integers(0, 2, batch, dtype=torch.bool),
        )
        return args, {}

    return Case(
        "conv.causal_conv1d_fn",
        f"{len(lengths)} sequences, {sum(lengths)} tokens of {channels}, {width} taps",
        make,
        in_place(3),
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        upstream=_MODULE + "causal_conv1d_fn",
    )


def _decode(batch: int, channels: int, width: int, drafts: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        each = drafts + 1
        kwargs = {
            "conv_state_indices": maker.permutation(batch + 2)[:batch],
            "activation": "silu",
        }
        if drafts:
            kwargs |= {
                "num_accepted_tokens": maker.integers(1, each + 1, batch),
                "query_start_loc": maker.tensor(range(0, batch * each + 1, each)),
                "max_query_len": each,
            }
        args = (
            maker.normal(batch * each, channels, dtype=dtype),
            _states(maker, batch + 2, channels, width - 1 + drafts, dtype),
            maker.normal(channels, width, dtype=dtype),
        )
        return args, kwargs

    return Case(
        "conv.causal_conv1d_update",
        f"{batch} sequences, {drafts} drafts, {channels} channels, {width} taps",
        make,
        in_place(0, 1),
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        upstream=_MODULE + "causal_conv1d_update",
    )


CASES = [
    _prefill([4000, 1, 95], 8192, 4, torch.bfloat16),
    _prefill([3, 0, 70], 2056, 3, torch.float32),
    _decode(256, 8192, 4, 0, torch.bfloat16),
    _decode(64, 2048, 4, 3, torch.bfloat16),
    _decode(5, 100, 2, 0, torch.float32),
]
