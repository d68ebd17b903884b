"""The rejection sampler's kernels: ours against their definitions, those against vLLM's own."""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes, with_gaps

from ascend_runtime import dispatch
from ascend_runtime.kernels import rejection as kernels
from ascend_runtime.reference import rejection as reference

#: Drafts of each request.
BATCHES = [[0], [1], [2, 0, 3, 0], [0, 0], [5] * 9, [32], []]
VOCAB = 5000  # more than a tile, and no multiple of one


def ends(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, dtype=torch.int32).cumsum(0).int()


def blank(counts: list[int]) -> torch.Tensor:
    return torch.full((len(counts), max(counts, default=0) + 1), -1, dtype=torch.int32)


def greedy_call(counts: list[int], every: bool) -> list:
    torch.manual_seed(len(counts))
    tokens = sum(counts)
    return [
        blank(counts),
        ends(counts),
        torch.randint(0, 2, (tokens,), dtype=torch.int32),
        torch.randint(0, 2, (tokens,)),
        torch.randint(100, 200, (len(counts), 1), dtype=torch.int32),
        None if every else torch.rand(len(counts)) < 0.5,
        max(counts, default=0),
    ]


def random_call(counts: list[int], draft: bool, vocab: int = 7) -> list:
    torch.manual_seed(len(counts))
    tokens = sum(counts)
    target = torch.rand(tokens, vocab)
    ids = torch.randint(-1, vocab + 2, (tokens,), dtype=torch.int32)  # some are no tokens
    draft_p = torch.rand(tokens, vocab) * (torch.rand(tokens, vocab) < 0.9) if draft else None
    return [
        blank(counts),
        ends(counts),
        ids,
        draft_p,
        target,
        torch.randint(100, 200, (len(counts), 1), dtype=torch.int32),
        torch.randint(0, vocab, (tokens,), dtype=torch.int32),
        torch.rand(tokens, dtype=torch.float64),
        torch.rand(len(counts)) < 0.3,
        max(counts, default=0),
        vocab,
    ]


def recover_call(counts: list[int], draft: bool, vocab: int = VOCAB) -> list:
    torch.manual_seed(len(counts))
    tokens = sum(counts)
    target = torch.rand(tokens, vocab)
    target[::3, : vocab // 2] = float("nan")
    target[1::5] = 0
    return [
        torch.full((tokens,), -5, dtype=torch.int32),
        ends(counts),
        torch.randint(-1, vocab + 2, (tokens,), dtype=torch.int32),
        torch.rand(tokens, vocab) if draft else None,
        target,
        1 / torch.empty(len(counts), vocab).exponential_(),
        vocab,
        8192,
    ]


def outputs(function, call: list, **options) -> torch.Tensor:
    given = [one.clone() if isinstance(one, torch.Tensor) else one for one in call]
    with ascend_grids():
        function(*given, **options)
    for before, after in zip(call[1:], given[1:], strict=True):
        if isinstance(before, torch.Tensor):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    return given[0]


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("counts", BATCHES, ids=str)
def test_greedy_kernel_is_the_definition(cores, counts, every):
    call = greedy_call(counts, every)
    assert outputs(kernels.greedy, call).equal(outputs(reference.greedy, call))


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("counts", BATCHES, ids=str)
def test_random_kernel_is_the_definition(cores, counts, draft):
    call = random_call(counts, draft)
    options = {"NO_DRAFT_PROBS": not draft}
    expected = outputs(reference.random, call, **options)
    assert outputs(kernels.random, call, **options).equal(expected)


def test_vectors_with_gaps(cores):
    """As are columns of a table; what is written has none."""
    for name, call in (
        ("greedy", greedy_call([2, 0, 3], False)),
        ("random", random_call([2, 0, 3], True)),
        ("recover", recover_call([2, 0, 3], True, 7)),
    ):
        read = (with_gaps(one) if isinstance(one, torch.Tensor) else one for one in call[1:])
        gaps = [call[0], *read]
        options = {"NO_DRAFT_PROBS": False} if name == "random" else {}
        right = outputs(getattr(reference, name), call, **options)
        with ascend_grids():
            getattr(kernels, name)(*gaps, **options)
        assert gaps[0].equal(right)


def test_random_kernel_clamps_uniform_numbers(cores):
    """Those that float32 would round to 0 or 1 change nothing."""
    call = random_call([1, 1], False)
    call[2] = torch.tensor([0, 0], dtype=torch.int32)
    call[4] = torch.zeros(2, 7)
    call[4][1, 0] = 1
    call[7] = torch.tensor([5e-324, 1 - 2**-53], dtype=torch.float64)
    call[8] = torch.tensor([False, False])
    got = outputs(kernels.random, call, NO_DRAFT_PROBS=True)
    assert got.tolist() == [[call[6][0], -1], [0, call[5][1, 0]]]


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("counts", [[1], [2, 0, 3], []], ids=str)
@pytest.mark.parametrize("vocab", [3, VOCAB])
def test_recover_kernel_is_the_definition(cores, counts, draft, vocab):
    call = recover_call(counts, draft, vocab)
    assert outputs(kernels.recover, call).equal(outputs(reference.recover, call))


@pytest.fixture
def sampler(vllm_site):
    return importlib.import_module("vllm.v1.sample.rejection_sampler")


@pytest.mark.parametrize("counts", BATCHES[:6], ids=str)
def test_definitions_are_vllms_kernels(sampler, counts):
    rows = (len(counts),)
    most = max(counts)
    with dispatch.override("upstream"):
        for every in (True, False):
            call = greedy_call(counts, every)
            ours = outputs(reference.greedy, call)
            assert outputs(sampler.rejection_greedy_sample_kernel[rows], call).equal(ours)
        for draft in (True, False):
            options = {"NO_DRAFT_PROBS": not draft}
            call = random_call(counts, draft)
            call[2].clamp_(0, 6)  # vLLM reads beyond the table for what is no token
            ours = outputs(reference.random, call, **options)
            theirs = sampler.rejection_random_sample_kernel[rows]
            assert outputs(theirs, call, **options).equal(ours)
            if most:
                call = recover_call(counts, draft, 300)
                call[4].nan_to_num_(0)
                ours = outputs(reference.recover, call)
                theirs = sampler.sample_recovered_tokens_kernel[(len(counts), most)]
                assert outputs(theirs, call, **options).equal(ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_expand_is_vllms_kernel(sampler, dtype):
    x = torch.tensor([0, 2**20 + 1, 5, 0], dtype=dtype)
    cu = ends([2, 0, 3, 1])
    ours, theirs = x.new_zeros(6), x.new_zeros(6)
    reference.expand(ours, x, cu, 0, 1, MAX_NUM_TOKENS=32)
    with dispatch.override("upstream"):
        sampler.expand_kernel[(4,)](theirs, x, cu, 0, 1, MAX_NUM_TOKENS=32)
    assert ours.tolist() == theirs.tolist() == [1, 1, 5, 5, 5, 1]


def test_many_requests_need_no_more_programs(sampler, monkeypatch):
    """vLLM launches a program a request, and triton-ascend refuses 65536 of them."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    call = greedy_call([0] * 65536, True)
    with launch_sizes() as sizes:
        kernels.greedy(*call)
        kernels.random(*random_call([0] * 65536, False), NO_DRAFT_PROBS=True)
        kernels.recover(*recover_call([1] * 65536, False, 2))
    assert sizes == [48, 48, 48]
    with (
        dispatch.override("upstream"),
        ascend_grids(),
        pytest.raises(GridTooLarge, match="65536 programs"),
    ):
        sampler.rejection_greedy_sample_kernel[(65536,)](*call)
