"""Sampling over Qwen's vocabulary of 151936, and over odd ones."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker, in_place

_FOLDER = "vllm.v1.worker.gpu.sample."
VOCAB = 151936


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _gumbel(rows: int, vocab: int, dtype: torch.dtype, out: bool) -> Case:
    def make(maker: Maker) -> Call:
        requests = rows + 3
        temperature = maker.uniform(requests)
        temperature[::3] = 0
        args = (
            maker.normal(rows, vocab, dtype=dtype),
            maker.permutation(requests)[:rows],
            temperature,
            maker.integers(-(2**40), 2**40, requests, dtype=torch.int64),
            maker.integers(0, 2**17, rows, dtype=torch.int64),
            True,
        )
        kwargs = {"processed_logits_out": maker.empty(requests, vocab)} if out else {}
        return args, kwargs

    return Case(
        "sampling.gumbel_sample",
        f"{rows} rows of {vocab} {_name(dtype)}{', kept' if out else ''}",
        make,
        in_place("processed_logits_out") if out else in_place(),
        upstream=_FOLDER + "gumbel:gumbel_sample",
    )


def _temperature(rows: int, vocab: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        logits = maker.normal(rows, vocab, dtype=dtype)
        return (logits, maker.permutation(rows), maker.uniform(rows) + 0.1), {}

    return Case(
        "sampling.apply_temperature",
        f"{rows} rows of {vocab} {_name(dtype)}",
        make,
        in_place(0),
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        upstream=_FOLDER + "gumbel:apply_temperature",
    )


def _logprobs(rows: int, vocab: int, wanted: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        ids = maker.integers(0, vocab, rows, wanted, dtype=torch.int64)
        return (maker.normal(rows, vocab, dtype=dtype), ids), {}

    return Case(
        "sampling.token_logprobs",
        f"{wanted} of {rows} rows of {vocab} {_name(dtype)}",
        make,
        upstream=_FOLDER + "logprob:compute_token_logprobs",
    )


def _ranks(rows: int, vocab: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        logits = maker.normal(rows, vocab, dtype=dtype)
        ids = maker.integers(0, vocab, rows, dtype=torch.int64)
        out = maker.empty(rows, dtype=torch.int64)
        return (out, logits, logits.stride(0), ids, vocab), {"BLOCK_SIZE": 8192}

    return Case(
        "sampling.ranks",
        f"{rows} rows of {vocab} {_name(dtype)}",
        make,
        in_place(0),
        upstream=_FOLDER + "logprob:_ranks_kernel",
        grid=lambda call: (rows,),
    )


def _penalties(rows: int, vocab: int, drafts: int) -> Case:
    def make(maker: Maker) -> Call:
        requests = rows + 2
        args = (
            maker.normal(rows, vocab),
            maker.permutation(requests)[:rows],
            maker.integers(0, vocab, rows),
            maker.tensor([row % (drafts + 1) for row in range(rows)]),
            maker.uniform(requests) + 0.5,
            maker.uniform(requests),
            maker.uniform(requests),
            maker.integers(-(2**31), 2**31 - 1, requests, -(-vocab // 32)),
            maker.integers(0, 3, requests, vocab),
            drafts,
        )
        return args, {}

    return Case(
        "sampling.apply_penalties",
        f"{rows} rows of {vocab}, up to {drafts} drafts",
        make,
        in_place(0),
        upstream=_FOLDER + "penalties:apply_penalties",
    )


def _post_update(rows: int, drafts: int, counts: bool) -> Case:
    def make(maker: Maker) -> Call:
        states, length, vocab = rows + 3, 64, 1000
        args = (
            maker.permutation(states)[:rows],
            maker.integers(0, 30, states),
            maker.integers(0, vocab, states, 1, dtype=torch.int64),
            maker.integers(0, 3, states, vocab) if counts else None,
            maker.integers(0, vocab, rows, drafts + 1, dtype=torch.int64),
            maker.integers(0, drafts + 2, rows),
            maker.integers(0, drafts + 1, rows),
            maker.tensor(range(0, rows * (drafts + 1) + 1, drafts + 1)),
            maker.integers(0, vocab, states, length),
            maker.integers(0, 30, states),
        )
        return args, {}

    written = (1, 2, 3, 8, 9) if counts else (1, 2, 8, 9)
    return Case(
        "sampling.post_update",
        f"{rows} requests, up to {drafts} drafts{', counted' if counts else ''}",
        make,
        in_place(*written),
        upstream="vllm.v1.worker.gpu.input_batch:post_update",
    )


CASES = [
    _gumbel(64, VOCAB, torch.float32, out=False),
    _gumbel(3, VOCAB, torch.bfloat16, out=True),
    _gumbel(5, 1500, torch.float32, out=True),
    _temperature(64, VOCAB, torch.float32),
    _temperature(3, 1500, torch.bfloat16),
    _logprobs(64, VOCAB, 1, torch.float32),
    _logprobs(3, 1500, 6, torch.bfloat16),
    _ranks(64, VOCAB, torch.float32),
    _ranks(3, 1500, torch.bfloat16),
    _penalties(64, VOCAB, 3),
    _penalties(3, 1500, 0),
    _post_update(64, 3, counts=True),
    _post_update(3, 0, counts=False),
]
