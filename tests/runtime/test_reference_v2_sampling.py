"""Sampling of the second model runner, defined: numbers worked out by hand, and distributions."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from ascend_runtime.reference import sampling, slots


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_philox_is_philox():
    """The known answers that its authors give for Philox-4x32-10."""
    zero, ones = [torch.tensor([0])] * 4, [torch.tensor([0xFFFFFFFF])] * 4
    pi = [torch.tensor([word]) for word in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    key = [torch.tensor([word]) for word in (0xA4093822, 0x299F31D0)]
    for counter, key_words, answer in (
        (zero, zero[:2], (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (ones, ones[:2], (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, key, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        got = sampling._philox(counter, key_words)
        assert [int(word) for word in got] == list(answer)


def draw(logits, temperature, seed=(0,), pos=None, requests=None, **kwargs):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    rows = len(logits)
    return sampling.gumbel_sample(
        logits,
        ints(*(requests or [0] * rows)),
        torch.tensor(temperature),
        ints(*seed, dtype=torch.int64),
        torch.arange(rows) if pos is None else torch.tensor(pos),
        True,
        **kwargs,
    )


def test_temperature_0_is_argmax_and_the_lowest_of_equals():
    assert draw([[1, 3, 3], [2, 2, 2]], [0.0], seed=[77]).tolist() == [1, 0]
    big = torch.zeros(1, 3000)
    big[0, [1100, 2900]] = 5
    assert draw(big, [0.0]).tolist() == [1100]


def test_nan_is_never_drawn():
    nan = float("nan")
    assert draw([[nan, 1, nan], [nan, nan, nan]], [0.0]).tolist() == [1, 0]
    assert draw([[nan, 1, nan]], [1.0]).tolist() == [1]


def test_frequencies():
    p = torch.tensor([0.1, 0.2, 0.7])
    drawn = draw(p.log().expand(20_000, 3), [1.0])
    frequency = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(frequency, p, atol=0.02, rtol=0)


def test_chi_square_of_four_tokens():
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    drawn = draw(p.log().expand(20_000, 4) * 2, [2.0], seed=[5])
    expected = p * 20_000
    chi = ((torch.bincount(drawn, minlength=4) - expected).square() / expected).sum()
    assert chi < 16.27, "p > 0.001 with three degrees of freedom"


def test_draws_depend_on_seed_and_position_alone():
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(0)).expand(64, 3000)
    one = draw(logits, [1.0], seed=[9])
    assert draw(logits, [1.0], seed=[9]).equal(one)
    assert draw(logits.flip(0), [1.0, 1.0], seed=[3, 9], requests=[1] * 64).equal(one)
    assert (one != draw(logits, [1.0], seed=[10])).float().mean() > 0.9
    assert len(set(one.tolist())) > 40, "positions are independent"
    assert draw(logits[:2], [1.0], seed=[9], pos=[5, 5]).unique().numel() == 1
    high = draw(logits, [1.0], seed=[9 + 2**32])
    assert (one != high).float().mean() > 0.9, "the seed's upper word counts"


def test_vocabulary_ends_where_it_ends():
    assert draw(torch.zeros(2000, 1500), [1.0]).max() < 1500


def test_processed_logits_and_temperature():
    out = torch.full((3, 6), -7.0)[:, ::2]
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    sampling.gumbel_sample(
        logits, ints(2, 0), torch.tensor([0.5, 1, 0]), ints(1, 1, 1), ints(0, 0), True, out
    )
    assert out.tolist() == [[8, 10, 12], [-7, -7, -7], [1, 2, 3]]
    sampling.gumbel_sample(
        logits, ints(2, 0), torch.tensor([0.5, 1, 0]), ints(1, 1, 1), ints(0, 0), False, out
    )
    assert out[0].tolist() == [4, 5, 6]


def test_pieces_give_the_same(monkeypatch):
    logits = torch.randn(7, 300)
    before = draw(logits, [1.0]), sampling.token_logprobs(logits, ints(*range(7))[:, None])
    monkeypatch.setattr(sampling, "_CHUNK", 700)
    assert draw(logits, [1.0]).equal(before[0])
    assert sampling.token_logprobs(logits, ints(*range(7))[:, None]).equal(before[1])


def test_apply_temperature():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sampling.apply_temperature(logits, ints(1, 0, 2), torch.tensor([0.5, 0, 1]))
    assert logits.tolist() == [[1, 2], [6, 8], [5, 6]]


def test_token_logprobs():
    logits = torch.tensor([[0.0, math.log(3)], [float("-inf"), 2]])
    got = sampling.token_logprobs(logits, ints(0, 1, 1, 0).view(2, 2))
    torch.testing.assert_close(got, torch.tensor([[0.25, 0.75], [1, 0]]).log())
    wide = torch.randn(2, 3000)
    ids = ints(5, 2999, 7, 0).view(2, 2)
    torch.testing.assert_close(
        sampling.token_logprobs(wide.bfloat16(), ids),
        wide.bfloat16().double().log_softmax(-1).gather(1, ids.long()).float(),
        rtol=1e-6,
        atol=1e-6,
    )


def test_ranks():
    logits = torch.tensor([[3.0, 1, 2, 2], [0, 0, 0, 0], [float("-inf"), 1, 0, 2]])
    out = torch.zeros(3, dtype=torch.int64)
    wide = torch.cat([logits, torch.full((3, 2), 99.0)], dim=1)  # beyond the vocabulary
    sampling.ranks(out, wide, 6, ints(2, 1, 0, dtype=torch.int64), 4, BLOCK_SIZE=8192)
    assert out.tolist() == [3, 4, 4]


def penalise(logits, states, rep, freq, pres, counts, prompt, tokens=(0,), pos=(0,), drafts=0):
    logits = torch.tensor(logits)
    sampling.apply_penalties(
        logits,
        ints(*states),
        ints(*tokens),
        ints(*pos),
        torch.tensor(rep),
        torch.tensor(freq),
        torch.tensor(pres),
        torch.as_tensor(prompt, dtype=torch.int32),
        torch.as_tensor(counts, dtype=torch.int32),
        drafts,
    )
    return logits.tolist()


def test_penalties_of_a_state_beyond_the_rows():
    """One row, whose request is the sixth of eight: -3 * 2 - 0.5 * 1 * 0.2 - 0.25 and so on."""
    table = torch.zeros(8)
    rep, freq, pres = table + 1, table.clone(), table.clone()
    rep[5], freq[5], pres[5] = 2.0, 0.5, 0.25
    counts = torch.zeros(8, 3)
    counts[5] = torch.tensor([1, 0, 3])
    prompt = torch.zeros(8, 1)
    prompt[5] = 0b010
    got = penalise(
        [[-2.8, 4.0, 1.0]], [5], rep.tolist(), freq.tolist(), pres.tolist(), counts, prompt
    )
    torch.testing.assert_close(torch.tensor(got), torch.tensor([[-6.35, 2.0, -1.25]]))


def test_drafts_before_a_row_count():
    """Row 2 is the third of its request: the second and third tokens are drafts before it."""
    got = penalise(
        [[0.0] * 4] * 3,
        [0, 0, 0],
        [1.0],
        [1.0],
        [0.0],
        [[0, 0, 0, 5]],
        [[0]],
        tokens=(3, 1, 1),
        pos=(0, 1, 2),
        drafts=2,
    )
    assert got == [[0, 0, 0, -5], [0, -1, 0, -5], [0, -2, 0, -5]]


def test_neutral_penalties_change_no_bit_and_bit_31_is_a_token():
    x = torch.randn(1, 64).tolist()
    assert penalise(x, [0], [1.0], [0.0], [0.0], [[1] * 64], [[-1, -1]]) == x
    got = penalise([[1.0] * 64], [0], [2.0], [0.0], [0.0], [[0] * 64], [[-(2**31), 1]])
    assert [place for place, value in enumerate(got[0]) if value == 0.5] == [31, 32]


@pytest.mark.parametrize(
    ("draft", "second"), [(-1, [1, 1]), (2, [1, 1]), (2**20, [1, 1]), (1, [1, 0])]
)
def test_penalties_count_no_draft_that_is_no_token(draft, second):
    """The second row is behind the draft."""
    x, none = [[1.0, 1.0]] * 2, ([[0, 0]], [[0]])
    where = {"tokens": (0, draft), "pos": (0, 1), "drafts": 1}
    assert penalise(x, [0, 0], [1.0], [1.0], [0.0], *none, **where) == [[1, 1], second]


@pytest.mark.parametrize("counted", [True, False])
def test_post_update(counted):
    computed, last = ints(0, 7, 0, 9), torch.full((4, 1), 42)
    counts = torch.zeros(4, 9, dtype=torch.int32)
    tokens = torch.zeros(4, 16, dtype=torch.int32)
    total = ints(0, 10, 0, 4)
    sampling.post_update(
        ints(3, 1),
        computed,
        last,
        counts if counted else None,
        torch.tensor([[5, 5], [2**40, -(2**40)]]),  # what is not sampled is no token
        ints(2, 0),
        ints(0, 1),
        ints(0, 2, 4),
        tokens,
        total,
    )
    assert total.tolist() == [0, 10, 0, 6]
    assert tokens[3, 4:6].tolist() == [5, 5] and tokens.sum() == 10
    assert last.flatten().tolist() == [42, 42, 42, 5]
    assert computed.tolist() == [0, 8, 0, 11]
    assert counts[3, 5] == (2 if counted else 0) and counts.sum() == (2 if counted else 0)


def test_post_update_at_the_end_of_the_table():
    tokens, total = torch.zeros(1, 4, dtype=torch.int32), ints(3)
    sampling.post_update(
        ints(0),
        ints(0),
        torch.zeros(1),
        None,
        torch.tensor([[8, 9]]),
        ints(1),
        ints(1),
        ints(0, 2),
        tokens,
        total,
    )
    assert tokens.tolist() == [[0, 0, 0, 8]] and total.tolist() == [4]


def tables(rows, size, most, dtype=torch.int32, cp=(1, 0, 1)):
    return SimpleNamespace(
        slot_mappings=torch.full((1, most), 99, dtype=dtype),
        block_tables=[SimpleNamespace(gpu=torch.tensor(rows, dtype=torch.int32))],
        block_sizes=[size],
        cp_size=cp[0],
        cp_rank=cp[1],
        cp_interleave=cp[2],
    )


def test_slots():
    known = tables([[0, 0], [9, 4]], 16, 8)
    got = slots.compute_slot_mappings(known, ints(1), ints(0, 5), torch.arange(14, 19), 6)
    assert got.tolist() == [[158, 159, 64, 65, 66, -1]]
    assert known.slot_mappings[0, 5:].tolist() == [-1, -1, -1]
    assert got.data_ptr() == known.slot_mappings.data_ptr()


def test_slots_near_2_to_the_24_are_exact():
    known = tables([[200001, 200002]], 128, 4)
    got = slots.compute_slot_mappings(known, ints(0), ints(0, 2), torch.tensor([127, 129]), 2)
    assert got.tolist() == [[25600255, 25600257]]


@pytest.mark.parametrize(
    ("rank", "step", "right"),
    [
        (0, 1, [20, -1, 21, -1, 22, -1, 23, -1, 28]),
        (1, 1, [-1, 20, -1, 21, -1, 22, -1, 23, -1]),
        (0, 2, [20, 21, -1, -1, 22, 23, -1, -1, 28]),
    ],
)
def test_slots_of_context_parallel_ranks(rank, step, right):
    known = tables([[5, 7]], 4, 9, torch.int64, (2, rank, step))
    got = slots.compute_slot_mappings(known, ints(0), ints(0, 9), torch.arange(9), 9)
    assert got.tolist() == [right]


def test_slots_of_requests_without_tokens_and_of_none():
    known = tables([[5, 7], [2, 3]], 4, 4)
    got = slots.compute_slot_mappings(known, ints(1, 0, 0), ints(0, 0, 2, 2), ints(0, 4).long(), 4)
    assert got.tolist() == [[20, 28, -1, -1]]
    got = slots.compute_slot_mappings(known, ints(), ints(0), torch.zeros(0).long(), 4)
    assert got.tolist() == [[-1] * 4]
