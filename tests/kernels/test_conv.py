"""Causal convolutions: our kernels, their definitions, and vLLM's own kernels."""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes, with_gaps

from ascend_runtime import dispatch
from ascend_runtime.kernels import conv as kernels
from ascend_runtime.reference import conv as reference


def prefill_call(lengths, channels=600, width=4, dtype=torch.float32, columns=None) -> dict:
    batch, tokens = len(lengths), sum(lengths)
    lines = torch.randperm(batch + 2)[:batch].int()
    lines[1:2] = -1
    states = torch.randn(batch + 2, (columns or width - 1) + 2, channels + 3).to(dtype)
    return {
        "x": torch.randn(tokens, channels + 5).to(dtype)[:, :channels].T,
        "weight": torch.randn(channels, width).to(dtype),
        "bias": torch.randn(channels).to(dtype),
        "conv_states": states[:, 1:-1, :channels].transpose(1, 2),
        "query_start_loc": torch.tensor([0, *lengths]).cumsum(0).int(),
        "cache_indices": lines,
        "has_initial_state": torch.rand(batch) < 0.5,
        "activation": "silu",
    }


def update_call(batch, channels=600, width=4, drafts=0, dtype=torch.float32) -> dict:
    call = prefill_call([drafts + 1] * batch, channels, width, dtype, width - 1 + drafts)
    lengths = torch.randint(0, drafts + 2, (batch,)) if drafts else torch.ones(batch).int()
    loc = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    made = {
        "x": call["x"].T[: int(loc[-1])],
        "conv_state": call["conv_states"],
        "weight": call["weight"],
        "bias": call["bias"],
        "activation": True,
        "conv_state_indices": call["cache_indices"],
    }
    if drafts:
        made |= {
            "num_accepted_tokens": torch.randint(1, drafts + 2, (batch,), dtype=torch.int32),
            "query_start_loc": loc,
            "max_query_len": drafts + 1,
        }
    return made


def copied(call: dict) -> dict:
    """A call whose tensors may be written; the gaps between their rows stay."""
    made = {}
    for name, value in call.items():
        made[name] = value
        if isinstance(value, torch.Tensor):
            made[name] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            made[name].copy_(value)
    return made


def columns_of(call: dict) -> torch.Tensor:
    """The columns of tokens whose sequence is no padding: the others are undefined."""
    where = reference.Sequences.of(call["query_start_loc"], call["x"].shape[1])
    return (call["cache_indices"] >= 0)[where.owner] if call["x"].shape[1] else torch.ones(0).bool()


def check_prefill(one, other, call: dict, **tolerance) -> None:
    results = []
    for function in (one, other):
        given = copied(call)
        with ascend_grids():
            y = function(**given)
        results.append([y[:, columns_of(call)], given["conv_states"]])
        assert given["x"].equal(call["x"])
    torch.testing.assert_close(*results, **tolerance)


def check_update(one, other, call: dict, **tolerance) -> None:
    results = []
    for function in (one, other):
        given = copied(call)
        with ascend_grids():
            y = function(**given)
        if call["x"].dtype == call["conv_state"].dtype:
            assert given["x"].equal(y)
        results.append([y, given["conv_state"]])
    torch.testing.assert_close(*results, **tolerance)


@pytest.mark.parametrize("lengths", [[1], [5, 2, 0, 20], [0, 0, 3], [40]], ids=str)
@pytest.mark.parametrize("width", [2, 3, 4])
def test_prefill_kernel_is_the_definition(cores, lengths, width):
    call = prefill_call(lengths, width=width)
    check_prefill(kernels.causal_conv1d_fn, reference.causal_conv1d_fn, call)


def test_prefill_kernel_takes_what_may_be_missing(cores):
    call = prefill_call([5, 2], channels=7)
    for name in ("bias", "has_initial_state", "activation"):
        check_prefill(kernels.causal_conv1d_fn, reference.causal_conv1d_fn, call | {name: None})
    call = call | {"cache_indices": torch.arange(2).int()}
    for function in (kernels.causal_conv1d_fn, reference.causal_conv1d_fn):
        one, other = copied(call), copied(call | {"cache_indices": None})
        assert function(**one).equal(function(**other))
        assert one["conv_states"].equal(other["conv_states"])
    assert kernels.causal_conv1d_fn(**prefill_call([])).shape == (600, 0)


def test_prefill_kernel_reads_no_stale_state(cores):
    call = prefill_call([5, 2, 1], channels=7)
    call["has_initial_state"][:] = False
    call["conv_states"].fill_(float("nan"))
    given = copied(call)
    assert kernels.causal_conv1d_fn(**given)[:, columns_of(call)].isfinite().all()


def test_prefill_kernel_of_half_floats(cores):
    call = prefill_call([5, 2, 9], dtype=torch.float16)
    check_prefill(kernels.causal_conv1d_fn, reference.causal_conv1d_fn, call, rtol=1e-3, atol=2e-3)
    mixed = call | {"conv_states": call["conv_states"].float()}
    assert kernels.causal_conv1d_fn(**copied(mixed)).dtype == torch.float16


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_update_kernel_is_the_definition(cores, batch, width, drafts):
    call = update_call(batch, width=width, drafts=drafts)
    check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, call)


def test_update_kernel_of_three_dimensions_and_other_dtypes(cores):
    call = update_call(3, channels=9)
    call["x"] = torch.randn(3, 9, 4)
    check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, call)
    call["x"] = call["x"].half()
    check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, call)
    for name in ("bias", "activation"):
        changed = call | {name: None}
        check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, changed)
    plain = call | {"conv_state_indices": None}
    check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, plain)


def test_vectors_with_gaps(cores):
    """As are columns of a table; each by itself."""
    call = prefill_call([5, 2, 0, 9], channels=7)
    for name in ("bias", "query_start_loc", "cache_indices", "has_initial_state"):
        one = call | {name: with_gaps(call[name])}
        check_prefill(kernels.causal_conv1d_fn, reference.causal_conv1d_fn, one)
    call = update_call(5, channels=7, drafts=3)
    for name in ("bias", "conv_state_indices", "num_accepted_tokens", "query_start_loc"):
        one = call | {name: with_gaps(call[name])}
        check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, one)


def test_what_the_kernels_take():
    call = prefill_call([2])
    assert kernels.causal_conv1d_fn_fits(**call)
    assert not kernels.causal_conv1d_fn_fits(**call, pad_slot_id=7)
    assert not kernels.causal_conv1d_fn_fits(
        **call, block_idx_last_scheduled_token=torch.zeros(1), initial_state_idx=torch.zeros(1)
    )
    assert not kernels.causal_conv1d_fn_fits(**(call | {"weight": torch.ones(600, 5)}))
    call = update_call(1)
    assert kernels.causal_conv1d_update_fits(**call)
    assert not kernels.causal_conv1d_update_fits(
        **call, block_idx_last_scheduled_token=torch.zeros(1)
    )


@pytest.fixture
def ops(vllm_site):
    return importlib.import_module("vllm.model_executor.layers.mamba.ops.causal_conv1d")


@pytest.mark.parametrize("width", [2, 3, 4])
def test_definitions_are_vllms_kernels(ops, width):
    call = prefill_call([5, 2, 20, 1], channels=40, width=width)
    call["conv_states"] = call["conv_states"].transpose(1, 2).contiguous().transpose(1, 2)
    with dispatch.override("upstream"):
        check_prefill(ops.causal_conv1d_fn, reference.causal_conv1d_fn, call)
        for drafts in (0, 3):
            call = update_call(5, channels=40, width=width, drafts=drafts)
            check_update(ops.causal_conv1d_update, reference.causal_conv1d_update, call)


def test_sizes_that_break_vllms_grid(ops, monkeypatch):
    """2,048 sequences of 8,192 channels are 65,536 programs of vLLM's, and 48 of ours."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    states = torch.empty(1, 8192, 3).expand(2048, 8192, 3)
    x, weight = torch.empty(1, 8192).expand(2048, 8192), torch.ones(8192, 4)
    with launch_sizes() as sizes:
        kernels.causal_conv1d_update(x.clone(), states, weight)
    assert sizes == [48, 48, 48]
    with dispatch.override("upstream"), ascend_grids(), pytest.raises(GridTooLarge):
        ops.causal_conv1d_update(x.clone(), states, weight)


@pytest.mark.parametrize("longer", ["indices", "lengths"])
def test_padded_arguments(cores, longer):
    """In graph mode there are more indices than sequences, or more (empty) sequences."""
    call = update_call(5, channels=9, drafts=2)
    if longer == "indices":
        more = torch.full((3,), 2, dtype=torch.int32)
        call["conv_state_indices"] = torch.cat([call["conv_state_indices"], more])
    else:
        last = call["query_start_loc"][-1:]
        call["query_start_loc"] = torch.cat([call["query_start_loc"], last, last])
    call["x"] = torch.cat([call["x"], torch.randn(4, 9)])
    check_update(kernels.causal_conv1d_update, reference.causal_conv1d_update, call)
    given = copied(call)
    y = reference.causal_conv1d_update(**given)
    assert y[-4:].equal(call["x"][-4:]), "tokens of no sequence stay"


def test_tensor_of_a_long_span_is_left_to_the_reference():
    """Three rows of four numbers, each 2**30 + 8 elements after the one before it."""
    assert kernels.spans_little(torch.empty(3, 4, device="meta"))
    assert not kernels.spans_little(torch.empty_strided((3, 4), (2**30 + 8, 1), device="meta"))
