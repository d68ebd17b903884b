"""The definitions of the rejection sampler's kernels, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from ascend_runtime.reference import rejection


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def blank(requests: int, most: int) -> torch.Tensor:
    return torch.full((requests, most + 1), -1, dtype=torch.int32)


def greedy(drafts, best, bonus, ends, most, flags=None) -> list[list[int]]:
    output = blank(len(ends), most)
    rejection.greedy(
        output,
        ints(*ends),
        ints(*drafts),
        torch.tensor(best),
        ints(*bonus)[:, None],
        None if flags is None else torch.tensor(flags),
        most,
    )
    return output.tolist()


def test_greedy_stops_at_the_first_difference():
    got = greedy([10, 11, 20, 21], [10, 99, 20, 22], [100, 200], [2, 4], 2)
    assert got == [[10, 99, -1], [20, 22, -1]]


def test_greedy_with_all_right_appends_the_bonus():
    assert greedy([10, 11, 20], [10, 11, 20], [100, 200], [2, 3], 2) == [
        [10, 11, 100],
        [20, 200, -1],
    ]


def test_greedy_leaves_other_rows_and_requests_without_drafts_get_the_bonus():
    got = greedy([1, 2], [1, 3], [7, 8, 9], [1, 1, 2], 1, [False, True, True])
    assert got == [[-1, -1], [8, -1], [3, -1]]
    assert greedy([], [], [7, 8], [0, 0], 1) == [[7, -1], [8, -1]]
    assert greedy([], [], [], [], 1) == []


def random(
    drafts, target_p, uniform, bonus, ends, most, draft_p=None, recovered=None, flags=None, vocab=4
) -> list[list[int]]:
    """`target_p` and `draft_p` are those of the drafts; the other tokens share the rest."""

    def rows(ps):
        table = torch.zeros(len(ps), vocab)
        for row, (p, draft) in enumerate(zip(ps, drafts, strict=True)):
            table[row] = (1 - p) / (vocab - 1)
            table[row, max(draft, 0)] = p
        return table

    output = blank(len(ends), most)
    rejection.random(
        output,
        ints(*ends),
        ints(*drafts),
        None if draft_p is None else rows(draft_p),
        rows(target_p),
        ints(*bonus)[:, None],
        ints(*(recovered or [3] * len(drafts))),
        torch.tensor(uniform, dtype=torch.float64),
        torch.tensor(flags or [False] * len(ends)),
        most,
        vocab,
        NO_DRAFT_PROBS=draft_p is None,
        num_warps=4,
    )
    return output.tolist()


def test_random_accepts_by_the_ratio():
    got = random([1, 2], [0.8, 0.2], [0.7, 0.6], [100], [2], 2, [0.6, 0.1])
    assert got == [[1, 2, 100]]


def test_random_loses_what_the_draft_gave_no_chance():
    assert random([1, 2], [0.8, 0.2], [0.7, 0.6], [100], [2], 2, [0.0, 0.1]) == [[3, -1, -1]]


def test_random_loses_what_the_target_gives_no_chance():
    least = 5e-324
    assert random([1], [0.0], [least], [100], [1], 1) == [[3, -1]]
    assert random([1], [0.0], [least], [100], [1], 1, [0.5]) == [[3, -1]]


def test_random_stops_at_the_first_lost():
    got = random([1, 2, 1], [0.9, 0.1, 0.9], [0.5] * 3, [100], [3], 3, recovered=[5, 6, 7])
    assert got == [[1, 6, -1, -1]]


def test_random_loses_a_placeholder():
    assert random([-1, 1], [1.0, 0.9], [0.0, 0.0], [100], [2], 2) == [[3, -1, -1]]


def test_what_is_no_token_is_lost_and_leaves_nothing_out():
    got = []
    for draft in (7, -5):
        output = blank(1, 1)
        given = [ints(1), ints(draft), None, torch.full((1, 7), 1.0), ints(100)[:, None], ints(3)]
        uniform, flags = torch.zeros(1, dtype=torch.float64), torch.tensor([False])
        rejection.random(output, *given, uniform, flags, 1, 7)
        got.append(output.tolist())
        assert recover([[0.1, 0.2, 0.7]], [draft], [[1.0, 1.0, 1.0]], [1]) == [2]
    assert got == [[[3, -1]], [[3, -1]]]


def test_random_leaves_greedy_rows():
    got = random([1, 1], [1.0, 1.0], [0.5, 0.5], [7, 8], [1, 2], 1, flags=[True, False])
    assert got == [[-1, -1], [1, 8]]


def test_random_compares_in_double():
    """A ratio of 1 is accepted whatever the uniform number is, even where float32 would say 1."""
    assert random([1], [1.0], [1 - 2**-53], [9], [1], 1) == [[1, 9]]


def expand(x, ends, count, replace=(0, 0)) -> list:
    x = torch.as_tensor(x)
    output = x.new_full((count,), 77)
    rejection.expand(output, x, ints(*ends), *replace, MAX_NUM_TOKENS=32)
    return output.tolist()


def test_expand():
    assert expand([10, 20, 30], [2, 5, 7], 7) == [10, 10, 20, 20, 20, 30, 30]
    assert expand([0.0, 0.5], [1, 3], 3, (0, 1)) == [1, 0.5, 0.5]
    assert expand([1, 2, 3], [2, 2, 3], 3) == [1, 1, 3]
    assert expand([2**24 + 1, 2**40 + 1], [1, 2], 2) == [2**24 + 1, 2**40 + 1]
    assert expand([float("inf"), 1.0], [1, 2], 2) == [float("inf"), 1.0]
    assert expand(torch.empty(0), [], 0) == []


def test_expand_goes_beyond_32_tokens_and_leaves_what_no_request_has():
    assert expand([5], [40], 42) == [5] * 40 + [77, 77]


def recover(target, drafts, inv_q, ends, draft=None) -> list[int]:
    target = torch.tensor(target)
    before = target.clone()
    output = torch.full((len(drafts),), -5, dtype=torch.int32)
    rejection.recover(
        output,
        ints(*ends),
        ints(*drafts),
        None if draft is None else torch.tensor(draft),
        target,
        torch.tensor(inv_q),
        target.shape[1],
        8192,
        NO_DRAFT_PROBS=draft is None,
    )
    assert target.equal(before) or target.isnan().any()
    return output.tolist()


def test_recover_leaves_the_draft_out_and_takes_the_lowest_of_equals():
    p = [0.1, 0.2, 0.7]
    inv_q = [[1 / x for x in p]]
    assert recover([p], [1], inv_q, [1]) == [0]
    assert recover([p], [0], inv_q, [1]) == [1]
    assert recover([p], [-1], [[1.0, 1.0, 1.0]], [1]) == [2], "a placeholder leaves nothing out"


def test_recover_from_the_rest():
    target, draft = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    assert recover([target], [2], [[1.0, 1.0, 1.0]], [1], [draft]) == [0]
    assert recover([target], [2], [[1.0, 4.0, 9.0]], [1], [draft]) == [1]


def test_recover_uses_the_noise_of_its_request():
    target = [[0.4, 0.6]] * 3
    inv_q = [[9.0, 1.0], [1.0, 1.0]]
    assert recover(target, [-1, -1, -1], inv_q, [1, 3]) == [0, 1, 1]


@pytest.mark.parametrize("draft", [None, [[0.3, 0.7]]])
def test_recover_of_nothing_is_token_0(draft):
    nan = float("nan")
    assert recover([[nan, nan]], [1], [[1.0, 1.0]], [1], draft) == [0]
    if draft:
        assert recover(draft, [1], [[1.0, 1.0]], [1], draft) == [0]
    assert recover([[0.0, 1.0]], [1], [[1.0, float("inf")]], [1], draft) == [0 if not draft else 1]


def test_recover_in_pieces_is_the_same(monkeypatch):
    torch.manual_seed(0)
    target, draft = torch.rand(11, 50).tolist(), torch.rand(11, 50).tolist()
    inv_q = torch.rand(3, 50).tolist()
    ids = list(range(11))
    whole = recover(target, ids, inv_q, [4, 4, 11], draft)
    monkeypatch.setattr(rejection, "_CHUNK", 100)
    assert recover(target, ids, inv_q, [4, 4, 11], draft) == whole


def frequencies(k: int, target: list[list[float]], draft: list[float] | None) -> torch.Tensor:
    """How often each token comes first when `k` drafts are drawn, over many requests."""
    requests, vocab = 200_000, len(target[0])
    generator = torch.Generator().manual_seed(k)
    shape = (requests * k, vocab)
    drawn = torch.tensor(draft) if draft else torch.full((vocab,), 1 / vocab)
    drafts = torch.multinomial(drawn, requests * k, True, generator=generator).int()
    if not draft:
        drafts = torch.zeros_like(drafts)  # an n-gram proposes the same token each time
    target_p = torch.tensor(target[:k]).repeat(requests, 1)
    draft_p = torch.tensor(draft).expand(shape).contiguous() if draft else None
    cu = torch.arange(k, requests * k + 1, k, dtype=torch.int32)
    inv_q = 1 / torch.empty(requests, vocab).exponential_(generator=generator)
    recovered = torch.empty_like(drafts)
    rejection.recover(recovered, cu, drafts, draft_p, target_p, inv_q, vocab)
    uniform = torch.rand(requests * k, dtype=torch.float64, generator=generator)
    output = blank(requests, k)
    flags = torch.zeros(requests, dtype=torch.bool)
    bonus = torch.zeros(requests, 1, dtype=torch.int32)
    rejection.random(
        output, cu, drafts, draft_p, target_p, bonus, recovered, uniform, flags, k, vocab
    )
    return torch.bincount(output[:, 0], minlength=vocab) / requests


@pytest.mark.parametrize("draft", [None, [0.6, 0.3, 0.1]])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_first_token_has_the_targets_distribution(k, draft):
    """Block verification fails this from three drafts on."""
    target = [[0.3, 0.5, 0.2]] + [[0.9, 0.05, 0.05]] * 4
    torch.testing.assert_close(
        frequencies(k, target, draft), torch.tensor(target[0]), atol=0.01, rtol=0
    )
