"""Sampling of the second model runner: our kernels, their definitions, and vLLM's kernels."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes, with_gaps

from ascend_runtime import dispatch
from ascend_runtime.kernels import sampling as kernels
from ascend_runtime.kernels import slots as slot_kernels
from ascend_runtime.reference import sampling as reference
from ascend_runtime.reference import slots as slot_reference


def places(rows: int, requests: int) -> torch.Tensor:
    return torch.randperm(requests)[:rows].int()


def both(name: str, *args, written: tuple[int, ...] = (), **kwargs) -> None:
    """Call kernel and definition, and compare what they return and the arguments they write."""
    results = []
    for module in (kernels, reference):
        given = [_copy(one) for one in args]
        named = {key: _copy(value) for key, value in kwargs.items()}
        with ascend_grids():
            returned = getattr(module, name)(*given, **named)
        results.append([returned, *(given[one] for one in written), *named.values()])
    torch.testing.assert_close(results[0], results[1], rtol=2e-6, atol=2e-6, equal_nan=True)


def _copy(value):
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return copy.copy_(value)


@pytest.mark.parametrize(("rows", "vocab"), [(0, 5), (1, 3), (3, 2048), (5, 2600), (3, 700)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gumbel(cores, rows, vocab, dtype):
    requests = rows + 2
    logits = torch.randn(rows, vocab + 3).to(dtype)[:, :vocab]
    temperature = torch.rand(requests)
    temperature[::2] = 0
    both(
        "gumbel_sample",
        logits,
        places(rows, requests),
        temperature,
        torch.randint(-(2**60), 2**60, (requests,)),
        torch.randint(0, 2**20, (rows,)),
        True,
        processed_logits_out=torch.zeros(requests, vocab + 5)[:, :vocab],
    )


def test_gumbel_draws_the_same_bits():
    """Of equal logits the largest noise wins, so each draw tells a random word."""
    rows, vocab = 40, 5000
    args = (
        torch.zeros(rows, vocab),
        torch.zeros(rows, dtype=torch.int32),
        torch.ones(1),
        torch.tensor([-(2**35) + 3]),
        torch.arange(rows),
        False,
    )
    drawn = kernels.gumbel_sample(*args)
    assert drawn.equal(reference.gumbel_sample(*args))
    assert len(drawn.unique()) > 35


def test_gumbel_ties_and_nan():
    logits = torch.zeros(3, 3000)
    logits[0, [700, 1300, 2999]] = 9
    logits[1] = float("nan")
    logits[2, :1000] = float("nan")
    args = (
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(1),
        torch.zeros(1).long(),
        torch.zeros(3),
    )
    assert kernels.gumbel_sample(logits, *args, True).tolist() == [700, 0, 1000]


@pytest.mark.parametrize(("rows", "vocab"), [(0, 5), (1, 3), (5, 4096), (7, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_temperature(cores, rows, vocab, dtype):
    logits = torch.randn(rows, vocab + 1).to(dtype)[:, 1:]
    temperature = torch.rand(rows + 2) + 0.1
    temperature[::3], temperature[1::3] = 0, 1
    both("apply_temperature", logits, places(rows, rows + 2), temperature, written=(0,))


@pytest.mark.parametrize(
    ("rows", "vocab", "wanted"), [(0, 5, 1), (1, 3, 1), (5, 4096, 5), (3, 5000, 2), (2, 9, 0)]
)
def test_logprobs(cores, rows, vocab, wanted):
    logits = torch.randn(rows, 2 * vocab)[:, ::1][:, vocab:] * 5
    if rows > 2:
        logits[0, 1:] = float("-inf")
        logits[1, : vocab // 2] = float("-inf")
        logits[2, 3] = float("nan")
    both("token_logprobs", logits, torch.randint(0, vocab, (rows, wanted)))


@pytest.mark.parametrize(("rows", "vocab"), [(0, 5), (1, 3), (5, 4096), (3, 5000)])
def test_ranks(cores, rows, vocab):
    logits = torch.randint(0, 9, (rows, vocab)).float()
    logits[: rows // 2] = float("-inf")
    ids = torch.randint(0, vocab, (rows,))
    both("ranks", torch.zeros(rows).long(), logits, vocab, ids, vocab, BLOCK_SIZE=8192)
    out = torch.zeros(rows).long()
    kernels.ranks(out, logits, vocab, ids, vocab)
    assert (out[: rows // 2] == vocab).all()


def penalties_call(rows: int, vocab: int, drafts: int) -> list:
    requests = rows + 3
    repetition = torch.rand(requests) + 0.5
    frequency, presence = torch.rand(requests), torch.rand(requests)
    repetition[::2] = 1
    frequency[::4] = presence[::4] = 0
    return [
        torch.randn(rows, vocab),
        places(rows, requests),
        torch.randint(0, min(vocab, 7), (rows,), dtype=torch.int32),
        torch.arange(rows, dtype=torch.int32) % (drafts + 1),
        repetition,
        frequency,
        presence,
        torch.randint(-(2**31), 2**31 - 1, (requests, -(-vocab // 32)), dtype=torch.int32),
        torch.randint(0, 2, (requests, vocab), dtype=torch.int32),
        drafts,
    ]


@pytest.mark.parametrize(
    ("rows", "vocab", "drafts"), [(0, 5, 0), (1, 3, 0), (5, 100, 2), (3, 1024, 0), (9, 2100, 4)]
)
def test_penalties(cores, rows, vocab, drafts):
    both("apply_penalties", *penalties_call(rows, vocab, drafts), written=(0,))


def update_call(rows: int, drafts: int, counted: bool) -> list:
    states, vocab = rows + 2, 9
    sampled = torch.randint(0, drafts + 2, (rows,), dtype=torch.int32)
    tokens = torch.randint(0, vocab, (rows, drafts + 1))
    tokens[torch.arange(drafts + 1) >= sampled[:, None]] = 2**40  # whatever was in memory
    return [
        places(rows, states),
        torch.randint(0, 50, (states,), dtype=torch.int32),
        torch.randint(0, vocab, (states, 1)),
        torch.randint(0, 5, (states, vocab), dtype=torch.int32) if counted else None,
        tokens,
        sampled,
        torch.randint(0, drafts + 1, (rows,), dtype=torch.int32),
        torch.arange(rows + 1, dtype=torch.int32) * (drafts + 1),
        torch.randint(0, vocab, (states, 64), dtype=torch.int32),
        torch.randint(0, 60, (states,), dtype=torch.int32),
    ]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("rows", "drafts"), [(0, 0), (1, 0), (5, 3), (70, 2)])
def test_post_update(cores, rows, drafts, counted):
    call = update_call(rows, drafts, counted)
    both("post_update", *call, written=(1, 2, 3, 8, 9))


def gapped(call: list, *which: int) -> list:
    return [with_gaps(one) if at in which else one for at, one in enumerate(call)]


def test_vectors_with_gaps(cores):
    """As are columns of a table; tensors that are written are vLLM's own and have none."""
    logits = torch.randint(0, 9, (5, 700)).float()
    temperature = torch.rand(8).round(decimals=1)
    draw = [logits, places(5, 8), temperature, torch.arange(8) * 7**20, torch.arange(5) + 3]
    both("gumbel_sample", *gapped(draw, 1, 2, 3, 4), True)
    both("apply_temperature", *gapped(draw[:3], 1, 2), written=(0,))
    rank = [torch.zeros(5).long(), logits, 700, torch.tensor([3, 600, 2, 9, 0]), 700]
    both("ranks", *gapped(rank, 3), written=(0,))
    both("apply_penalties", *gapped(penalties_call(9, 100, 3), *range(1, 7)), written=(0,))
    update = gapped(update_call(5, 3, True), 0, 5, 6, 7)
    update[4] = update[4].T.contiguous().T
    both("post_update", *update, written=(1, 2, 3, 8, 9))


def test_tables_with_gaps(cores):
    """Those that are read are copied; those that are written are left to the definition."""
    wide = torch.randn(5, 1400)[:, ::2]
    draw = [wide, places(5, 8), torch.rand(8) + 0.1, torch.arange(8), torch.arange(5)]
    both("gumbel_sample", *draw, True)
    both("token_logprobs", wide, torch.randint(0, 700, (5, 3)))
    both("ranks", torch.zeros(5).long(), wide, 1400, torch.arange(5), 700, written=(0,))
    call = penalties_call(9, 100, 3)
    call[7], call[8] = (one.T.contiguous().T for one in call[7:9])
    both("apply_penalties", *call, written=(0,))
    assert kernels.apply_penalties_fits(*call)
    assert not kernels.apply_penalties_fits(wide, *call[1:])
    assert not kernels.apply_temperature_fits(wide, *draw[1:3])
    assert kernels.apply_temperature_fits(wide.contiguous(), *draw[1:3])
    assert kernels.gumbel_sample_fits(*draw, True)
    assert not kernels.gumbel_sample_fits(*draw, True, processed_logits_out=wide)
    update = update_call(5, 3, True)
    assert kernels.post_update_fits(*update)
    for at in (1, 2, 3, 8, 9):
        assert not kernels.post_update_fits(*gapped(update, at))


def test_sampled_ids_that_are_no_tokens(cores):
    """They are kept with the tokens, and counted nowhere."""
    call = update_call(2, 1, True)
    call[4][:] = torch.tensor([[-1, 3], [9, 2**31 - 1]])
    call[5][:] = 2
    both("post_update", *call, written=(1, 2, 3, 8, 9))
    before = call[3].clone()
    kernels.post_update(*call)
    changed = call[3] - before
    assert changed.sum() == 1 and changed[call[0][0], 3] == 1
    both("post_update", *call[:5], call[5].long(), *call[6:], written=(1, 2, 3, 8, 9))


def slot_tables(sizes: list[int], rows: int, most: int, cp=(1, 0, 1), dtype=torch.int32):
    return SimpleNamespace(
        slot_mappings=torch.full((len(sizes), most), 99, dtype=dtype),
        block_tables=[
            SimpleNamespace(gpu=torch.randint(0, 300_000, (rows, 30), dtype=torch.int32))
            for _ in sizes
        ],
        block_sizes=sizes,
        cp_size=cp[0],
        cp_rank=cp[1],
        cp_interleave=cp[2],
    )


@pytest.mark.parametrize("cp", [(1, 0, 1), (2, 1, 1), (4, 2, 8)], ids=str)
@pytest.mark.parametrize("lengths", [[], [0], [5], [1, 0, 1100, 3]], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_slots(cores, cp, lengths, dtype):
    tables = slot_tables([16, 128], len(lengths) + 2, sum(lengths) + 1050, cp, dtype)
    args = (
        places(len(lengths), len(lengths) + 2),
        torch.tensor([0, *lengths]).cumsum(0).int(),
        torch.cat([torch.arange(9, 9 + one) % 400 for one in [*lengths, 0]]),
        sum(lengths) + 2,
    )
    right = slot_reference.compute_slot_mappings(tables, *args)
    all_right = tables.slot_mappings.clone()
    tables.slot_mappings.fill_(99)
    with ascend_grids():
        got = slot_kernels.compute_slot_mappings(tables, *args)
    assert got.equal(right[:, : got.shape[1]]) and tables.slot_mappings.equal(all_right)


def test_slots_of_positions_behind_the_last_block(cores):
    tables = slot_tables([16], 2, 8)
    numbers = tables.block_tables[0].gpu[1].tolist()
    positions = torch.tensor([29 * 16 + 15, 30 * 16, 3, 30 * 16 + 40])
    vectors = (torch.tensor([1, 0]).int()[:1], torch.tensor([0, 4]).int(), positions)
    for module in (slot_reference, slot_kernels):
        for args in (vectors, map(with_gaps, vectors)):
            got = module.compute_slot_mappings(tables, *args, 5)
            assert got.tolist() == [[numbers[29] * 16 + 15, -1, numbers[0] * 16 + 3, -1, -1]]
            tables.slot_mappings.fill_(99)


@pytest.fixture
def vllm(vllm_site):
    return lambda name: importlib.import_module(f"vllm.v1.worker.gpu.{name}")


def test_definitions_are_vllms_kernels(vllm):
    """But for the Gumbel noise, whose random stream is our own."""
    gumbel, logprob, penalties = (vllm(f"sample.{n}") for n in ("gumbel", "logprob", "penalties"))
    logits = torch.randn(5, 2600)
    where, temperature = places(5, 8), torch.rand(8).round()
    seeds, positions = torch.arange(8), torch.arange(5)
    with dispatch.override("upstream"):
        drawn = gumbel.gumbel_sample(logits, where, torch.zeros(8), seeds, positions, True)
        assert drawn.equal(logits.argmax(-1))
        outs = [torch.zeros(8, 2600) for _ in range(2)]
        temperature = torch.rand(8) + 0.1
        gumbel.gumbel_sample(logits, where, temperature, seeds, positions, True, outs[0])
        reference.gumbel_sample(logits, where, temperature, seeds, positions, True, outs[1])
        torch.testing.assert_close(*outs)
        rows = [logits.clone() for _ in range(2)]
        temperature[::2] = 0
        gumbel.apply_temperature(rows[0], where, temperature)
        reference.apply_temperature(rows[1], where, temperature)
        torch.testing.assert_close(*rows)

        ids = torch.randint(0, 2600, (5, 3))
        torch.testing.assert_close(
            logprob.compute_token_logprobs(logits, ids), reference.token_logprobs(logits, ids)
        )
        chosen = ids[:, 0].contiguous()
        told = logprob.compute_topk_logprobs(logits.round(), 2, chosen)
        out = torch.zeros(5).long()
        reference.ranks(out, logits.round(), 2600, chosen, 2600)
        assert told.selected_token_ranks.equal(out)

        call = penalties_call(6, 2100, 3)
        rows = [call[0].clone() for _ in range(2)]
        penalties.apply_penalties(rows[0], *call[1:])
        reference.apply_penalties(rows[1], *call[1:])
        torch.testing.assert_close(*rows)

        call = update_call(20, 3, True)
        calls = [[_copy(one) for one in call] for _ in range(2)]
        vllm("input_batch").post_update(*calls[0])
        reference.post_update(*calls[1])
        for one, other in zip(*calls, strict=True):
            assert one.equal(other)


@pytest.mark.parametrize("cp", [(1, 0, 1), (2, 1, 2)], ids=str)
def test_slots_are_vllms(vllm, cp):
    module = vllm("block_table")
    with importlib.import_module("platform_kit").on_platform("cpu"):
        tables = module.BlockTables(
            block_sizes=[16, 32],
            max_num_reqs=4,
            max_num_batched_tokens=300,
            max_model_len=256,
            device=torch.device("cpu"),
            cp_size=cp[0],
            cp_rank=cp[1],
            cp_interleave=cp[2],
        )
    for table in tables.block_tables:
        table.gpu.copy_(torch.randint(0, 99, table.gpu.shape))
    args = (
        torch.tensor([2, 0, 3], dtype=torch.int32),
        torch.tensor([0, 150, 150, 157], dtype=torch.int32),
        torch.cat([torch.arange(20, 170), torch.arange(7)]),
        200,
    )
    got = tables.compute_slot_mappings(*args).clone()
    with dispatch.override("upstream"):
        theirs = tables.compute_slot_mappings(*args)
    assert got.equal(theirs) and len(got.unique()) > 100


def test_sizes_that_break_vllms_grid(vllm, monkeypatch):
    """440 rows of Qwen's vocabulary are 65,560 programs of vLLM's, and 48 of ours."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    rows, vocab = 440, 151936
    where = torch.zeros(rows, dtype=torch.int32)
    logits = torch.empty(1, vocab).expand(rows, vocab)
    call = (logits, where, torch.ones(1), torch.zeros(1).long(), torch.zeros(rows).long(), True)
    with launch_sizes() as sizes:
        kernels.gumbel_sample(*call)
        kernels.apply_temperature(*call[:3])
        kernels.token_logprobs(logits, where[:, None])
    assert sizes == [48] * 3
    module = vllm("sample.gumbel")
    with dispatch.override("upstream"), ascend_grids(), pytest.raises(GridTooLarge):
        module.gumbel_sample(*call)
