"""Speculative decoding with Qwen's vocabulary, with and without draft probabilities."""

from __future__ import annotations

import torch

from ci.kernel_cases import Call, Case, Maker, in_place

_MODULE = "vllm.v1.sample.rejection_sampler:"


def _cu(requests: int, most: int) -> list[int]:
    """Requests have from none to `most` drafts."""
    ends, end = [], 0
    for request in range(requests):
        end += most - request % (most + 1) if request else most
        ends.append(end)
    return ends


def _greedy(requests: int, most: int, every: bool) -> Case:
    def make(maker: Maker) -> Call:
        ends = _cu(requests, most)
        drafts = maker.integers(0, 3, ends[-1])
        output = maker.integers(-1, 0, requests, most + 1)
        bonus = maker.integers(0, 100, requests, 1)
        target = maker.integers(0, 3, ends[-1], dtype=torch.int64)
        flags = None if every else maker.integers(0, 2, requests, dtype=torch.bool)
        return (output, maker.tensor(ends), drafts, target, bonus, flags, most), {}

    return Case(
        "rejection.greedy",
        f"{requests} requests, up to {most} drafts, {'all' if every else 'some'} greedy",
        make,
        in_place(0),
        upstream=_MODULE + "rejection_greedy_sample_kernel",
        grid=lambda call: (requests,),
    )


def _probabilities(maker: Maker, tokens: int, vocab: int) -> torch.Tensor:
    return maker.normal(tokens, vocab).softmax(-1)


def _random(requests: int, most: int, vocab: int, draft: bool) -> Case:
    def make(maker: Maker) -> Call:
        ends = _cu(requests, most)
        tokens = ends[-1]
        args = (
            maker.integers(-1, 0, requests, most + 1),
            maker.tensor(ends),
            maker.integers(0, vocab, tokens),
            _probabilities(maker, tokens, vocab) if draft else None,
            _probabilities(maker, tokens, vocab),
            maker.integers(0, vocab, requests, 1),
            maker.integers(0, vocab, tokens),
            maker.uniform(tokens, dtype=torch.float64) * (1.0 if draft else 2.0 / vocab),
            maker.integers(0, 2, requests, dtype=torch.bool),
            most,
            vocab,
        )
        return args, {"NO_DRAFT_PROBS": not draft}

    return Case(
        "rejection.random",
        f"{requests} requests, up to {most} drafts of {vocab}, {'with' if draft else 'no'} p",
        make,
        in_place(0),
        upstream=_MODULE + "rejection_random_sample_kernel",
        grid=lambda call: (requests,),
    )


def _recover(requests: int, most: int, vocab: int, draft: bool) -> Case:
    def make(maker: Maker) -> Call:
        ends = _cu(requests, most)
        tokens = ends[-1]
        args = (
            maker.integers(-1, 0, tokens),
            maker.tensor(ends),
            maker.integers(0, vocab, tokens),
            _probabilities(maker, tokens, vocab) if draft else None,
            _probabilities(maker, tokens, vocab),
            1 / maker.uniform(requests, vocab).clamp(1e-6).log().neg(),
            vocab,
            8192,
        )
        return args, {"NO_DRAFT_PROBS": not draft}

    return Case(
        "rejection.recover",
        f"{requests} requests, up to {most} drafts of {vocab}, {'with' if draft else 'no'} p",
        make,
        in_place(0),
        upstream=_MODULE + "sample_recovered_tokens_kernel",
        grid=lambda call: (requests, most),
    )


CASES = [
    _greedy(64, 3, every=True),
    _greedy(7, 5, every=False),
    _random(64, 3, 151936, draft=False),
    _random(7, 5, 151936, draft=True),
    _recover(16, 3, 151936, draft=False),
    _recover(7, 5, 151936, draft=True),
    _recover(3, 1, 1000, draft=True),
]
