"""Gated delta nets token by token: kernels against definitions, and those against vLLM's kernels.

vLLM's kernels leave the outputs of padding as they are; those are not compared.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes
from torch.testing import assert_close

from ascend_runtime import dispatch, gdn
from ascend_runtime.kernels import gdn as kernels
from ascend_runtime.operations import OPERATIONS
from ascend_runtime.reference import gdn as reference

_OPS = "vllm.model_executor.layers.fla.ops"
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
SIZES = pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1, 1, 1, 1), torch.float32),
        ((2, 4, 8, 16), torch.float16),
        ((1, 3, 24, 40), torch.float32),
        ((1, 2, 128, 72), torch.float16),
    ],
    ids=str,
)
Sizes = tuple[int, int, int, int]
SMALL = (2, 4, 8, 16)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 2e-5}


def cache(lines: int, sizes: Sizes, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """States in pages that have something else behind them."""
    size = sizes[1] * sizes[3] * sizes[2]
    pages = torch.randn(lines, size + 3).to(dtype)
    return pages[:, :size].view(lines, sizes[1], sizes[3], sizes[2])


def tokens(rows: int, count: int, sizes: Sizes, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """q, k and v as parts of one tensor, as a convolution leaves them."""
    heads, value_heads, keys, values = sizes
    widths = [heads * keys, heads * keys, value_heads * values]
    parts = torch.randn(rows, count, sum(widths)).to(dtype).split(widths, 2)
    shapes = ((heads, keys), (heads, keys), (value_heads, values))
    return {
        name: part.view(rows, count, *shape)
        for name, part, shape in zip("qkv", parts, shapes, strict=True)
    }


def gates(rows: int, count: int, heads: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {"g": -torch.rand(rows, count, heads), "beta": torch.rand(rows, count, heads).to(dtype)}


#: Tokens of each sequence, lines, and tokens accepted.
BATCHES = {
    "decode": ([1, 1, 1, 1], [5, -1, 0, 3], None),
    "empty": ([], [], None),
    "zero length": ([0, 2, 0, 1], [4, 1, 5, 0], None),
    "drafts": ([3, 1, 3, 2], [[1, 2, 3], [0, 7, 8], [4, -1, 5], [-1, 6, 9]], [2, 3, 1, 1]),
    "longer than its lines": ([4], [[2, 0]], None),
}


def where(name: str) -> dict[str, torch.Tensor | None]:
    lengths, lines, accepted = BATCHES[name]
    return {
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
        "ssm_state_indices": torch.tensor(lines, dtype=torch.int32),
        "num_accepted_tokens": None if accepted is None else torch.tensor(accepted),
    }


def both(function: str, call: dict, *written: str, theirs=None) -> tuple[list, list]:
    """What two implementations return, and what they write of the arguments named."""
    results = []
    for way in (theirs or getattr(kernels, function), getattr(reference, function)):
        given = dict(call)
        for name in written:
            given[name] = call[name].clone(memory_format=torch.preserve_format)
            # A clone would have no gaps.
            strided = torch.empty_strided(
                call[name].shape, call[name].stride(), dtype=call[name].dtype
            )
            given[name] = strided.copy_(call[name])
        with ascend_grids():
            got = way(**given)
        results.append([*(got or ()), *(given[name] for name in written)])
    return results[0], results[1]


@SIZES
@pytest.mark.parametrize("batch", BATCHES)
def test_recurrent_kernel_is_the_definition(cores, sizes, dtype, batch):
    count = sum(BATCHES[batch][0])
    call = tokens(1, count, sizes, dtype) | gates(1, count, sizes[1], dtype) | where(batch)
    call |= {"scale": 0.3, "initial_state": cache(10, sizes), "use_qk_l2norm_in_kernel": True}
    got, wanted = both("fused_recurrent_fwd", call, "initial_state")
    assert got[0].dtype == dtype
    assert_close(got, wanted, **tolerance(dtype))


@pytest.mark.parametrize("normalise", [True, False])
def test_rows_and_no_cache(cores, normalise):
    call = tokens(3, 2, SMALL, torch.float32) | gates(3, 2, 4, torch.float32)
    call |= {"scale": 0.3, "initial_state": cache(6, SMALL), "use_qk_l2norm_in_kernel": normalise}
    got, wanted = both("fused_recurrent_fwd", call | {"inplace_final_state": False})
    assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    call["ssm_state_indices"] = torch.tensor([3, 0, -1, 9])[:3]
    got, wanted = both("fused_recurrent_fwd", call, "initial_state")
    assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def launch(count: int, sizes: Sizes, kda: bool, headwise: bool) -> dict:
    heads = sizes[1]
    call = tokens(1, count, sizes, torch.float32) | gates(1, count, heads, torch.float32)
    call = {name: x.contiguous() for name, x in call.items()}
    if kda:
        call["g"] = -torch.rand(1, count, heads, sizes[2])
    if headwise:
        call["beta"] = torch.rand(1, count, heads, sizes[3])
    return call | {
        "o": torch.zeros_like(call["v"]),
        "h0": cache(10, sizes),
        "cu_seqlens": None,
        "ssm_state_indices": None,
        "num_accepted_tokens": None,
        "scale": 0.3,
        "USE_QK_L2NORM_IN_KERNEL": True,
        "INPLACE_FINAL_STATE": True,
        "IS_KDA": kda,
    }


@pytest.mark.parametrize("kda", [True, False])
@pytest.mark.parametrize("headwise", [True, False])
@pytest.mark.parametrize("batch", ["decode", "drafts"])
def test_launched_kernel_is_the_definition(cores, kda, headwise, batch):
    call = launch(sum(BATCHES[batch][0]), (2, 4, 24, 40), kda, headwise) | where(batch)
    results = []
    for way in (kernels.fused_recurrent_kernel, reference.fused_recurrent_kernel):
        o, state = call["o"].clone(), call["h0"].clone()
        assert way(**(call | {"o": o, "h0": state, "ht": state})) is None
        results.append((o, state))
    assert_close(*results, rtol=1e-5, atol=2e-5)


def packed(rows: int, sizes: Sizes, dtype: torch.dtype) -> dict:
    heads, value_heads, keys, values = sizes
    width = 2 * heads * keys + value_heads * values
    lines = torch.arange(rows, dtype=torch.int32).flip(0)
    lines[1:2] = -1
    return {
        "mixed_qkv": torch.randn(rows, width + 5)[:, :width].to(dtype),
        "a": torch.randn(rows, value_heads + 1).to(dtype)[:, 1:] * 9,
        "b": torch.randn(rows, value_heads + 1).to(dtype)[:, 1:],
        "A_log": torch.randn(value_heads),
        "dt_bias": torch.randn(value_heads).to(dtype),
        "scale": 0.3,
        "initial_state": cache(rows + 2, sizes),
        "out": torch.full((rows, 1, value_heads, values), 7.0, dtype=dtype),
        "ssm_state_indices": lines,
        "use_qk_l2norm_in_kernel": True,
    }


@SIZES
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_packed_decode_is_the_definition(cores, sizes, dtype, rows):
    call = packed(rows, sizes, dtype)
    got, wanted = both("packed_decode", call, "initial_state", "out")
    assert_close(got, wanted, **tolerance(dtype))
    assert not got[3][1:2].any()


def sigmoid(batch: str, sizes: Sizes, dtype: torch.dtype, strided: bool = True) -> dict:
    count, heads = sum(BATCHES[batch][0]), sizes[1]
    made = packed(count, sizes, dtype)
    call = tokens(1, count, sizes, dtype) | {name: made[name] for name in ("a", "b", "A_log")}
    state = cache(10, sizes)
    return (
        call
        | where(batch)
        | {
            "dt_bias": torch.randn(heads).to(dtype),
            "initial_state": state if strided else state.contiguous(),
            "use_qk_l2norm_in_kernel": True,
        }
    )


@SIZES
@pytest.mark.parametrize("batch", BATCHES)
def test_sigmoid_gating_is_the_definition(cores, sizes, dtype, batch):
    got, wanted = both("sigmoid_gating_update", sigmoid(batch, sizes, dtype), "initial_state")
    assert_close(got, wanted, **tolerance(dtype))


def test_sigmoid_gating_takes():
    call = sigmoid("decode", SMALL, torch.float32)
    assert kernels.sigmoid_gating_update_fits(**call)
    assert not kernels.sigmoid_gating_update_fits(**call, is_kda=True)
    assert not kernels.sigmoid_gating_update_fits(*[None] * 16, True)


@FLOATS
@pytest.mark.parametrize(("rows", "heads"), [(0, 4), (1, 1), (70, 30), (130, 5), (3, 100)])
@pytest.mark.parametrize("bend", [(1.0, 20.0), (2.0, 0.5)], ids=str)
def test_gates_are_the_definition(cores, rows, heads, dtype, bend):
    given = {
        "A_log": torch.randn(heads),
        "a": torch.randn(heads, rows).to(dtype).T * 40,
        "b": torch.randn(rows, 2 * heads).to(dtype)[:, heads:] * 9,
        "dt_bias": torch.randn(2 * heads).to(dtype)[::2],
        "beta": bend[0],
        "threshold": bend[1],
    }
    for name, more in (("gating", {}), ("olmo_gating", {"allow_neg_eigval": True})):
        got, wanted = both(name, given | more)
        # The kernel takes log(1 + e), of which what is below float32's last bit of 1 is lost.
        assert_close(got, wanted, rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-5)


@FLOATS
@pytest.mark.parametrize("rows", [0, 1, 5, 300])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 4, 2, 1), (3, 9, 7, 5), (1, 5, 24, 300)])
def test_split_is_exact(cores, rows, sizes, dtype):
    key_heads, heads, keys, values = sizes
    qkvz = torch.randn(rows, 2 * (key_heads * keys + heads * values)).to(dtype)
    ba = torch.randn(rows, 2 * heads).to(dtype)
    with ascend_grids():
        got = kernels.split_qkvzba(qkvz, ba, *sizes)
    for one, wanted in zip(got, reference.split_qkvzba(qkvz, ba, *sizes), strict=True):
        assert torch.equal(one, wanted) and one.is_contiguous()
        assert one._base is None or one._base.numel() == one.numel()


def test_operator_of_npus_runs_the_kernel(monkeypatch):
    qkvz, ba = torch.randn(5, 16), torch.randn(5, 8)
    wanted = reference.split_qkvzba(qkvz, ba, 2, 4, 2, 1)
    monkeypatch.setattr(gdn.layer, "is_npu", lambda x: True)
    with launch_sizes() as sizes, dispatch.override("kernel", "gdn.split_qkvzba"):
        gdn.split_qkvzba(qkvz, ba, 2, 4, 2, 1)
    assert len(sizes) == 1
    with dispatch.override("kernel", "gdn.split_qkvzba"):
        assert_close(gdn.split_qkvzba(qkvz, ba, 2, 4, 2, 1), wanted)


@pytest.mark.parametrize("name", [one for one in reference.__all__ if f"gdn.{one}" in OPERATIONS])
def test_table_finds_all_that_it_names(name):
    for way in OPERATIONS[f"gdn.{name}"].implementations:
        for target in filter(None, (way.function, way.fits)):
            module, _, function = target.partition(":")
            assert callable(getattr(importlib.import_module(module), function))


def test_lines_with_gaps_are_left_to_the_definition():
    whole, gaps = cache(4, SMALL), torch.empty(4, 4, 8, 16).transpose(2, 3)
    q = torch.empty(0)
    rest = (q, q, q, q, q, 1.0)
    assert kernels.fused_recurrent_fwd_fits(*rest, whole, True)
    assert not kernels.fused_recurrent_fwd_fits(*rest, gaps)
    assert not kernels.fused_recurrent_fwd_fits(*rest, initial_state=gaps)
    assert kernels.packed_decode_fits(*rest, whole, q, q)
    assert not kernels.packed_decode_fits(*rest, gaps, q, q)
    assert kernels.fused_recurrent_kernel_fits(h0=whole, ht=whole, q=q)
    assert not kernels.fused_recurrent_kernel_fits(h0=whole, ht=gaps, q=q)
    assert kernels.sigmoid_gating_update_fits(q, *rest[:5], q, initial_state=whole)
    assert not kernels.sigmoid_gating_update_fits(q, *rest[:5], q, initial_state=gaps)
    assert kernels.sigmoid_gating_update_fits(q, *rest[:5], q, 1.0, 20.0, None, whole)
    assert not kernels.sigmoid_gating_update_fits(q, *rest[:5], q, 1.0, 20.0, None, gaps)


def test_line_with_gaps_is_refused():
    """Nothing is copied in silence: the states would go to the copy."""
    call = packed(2, SMALL, torch.float32)
    call["initial_state"] = torch.randn(4, 4, 32, 8)[:, :, ::2]
    with pytest.raises(RuntimeError, match="line of the states must be contiguous"):
        kernels.packed_decode(**call)


@pytest.fixture
def recurrent(vllm_site):
    return importlib.import_module(f"{_OPS}.fused_recurrent")


@pytest.fixture
def fused(vllm_site):
    return importlib.import_module(f"{_OPS}.fused_sigmoid_gating")


def upstream(function):
    def way(**given):
        with dispatch.override("upstream"):
            return function(**given)

    return way


#: vLLM's kernel leaves skipped outputs undefined, and reads beyond short rows of lines.
SAME = pytest.mark.parametrize("batch", ["zero length", "drafts"])


def drop_padding(call: dict) -> dict:
    lines = call["ssm_state_indices"]
    if lines.dim() == 2:
        lines[3] = torch.tensor([9, 6, -1])
    return call


@SAME
@pytest.mark.parametrize("sizes", [SMALL, (1, 3, 24, 40)], ids=str)
def test_definition_is_vllms_kernel(recurrent, batch, sizes):
    count = sum(BATCHES[batch][0])
    call = tokens(1, count, sizes, torch.float32) | gates(1, count, sizes[1], torch.float32)
    call = {name: x.contiguous() for name, x in call.items()} | drop_padding(where(batch))
    if batch == "zero length":
        # vLLM's kernel counts on from the line of a longer sequence.
        call["ssm_state_indices"] = torch.tensor([[4, -1], [1, 2], [5, -1], [0, -1]])
    call |= {"scale": 0.3, "initial_state": cache(10, sizes), "use_qk_l2norm_in_kernel": True}
    theirs = upstream(recurrent.fused_recurrent_gated_delta_rule_fwd)
    assert_close(*both("fused_recurrent_fwd", call, "initial_state", theirs=theirs))


def test_packed_definition_is_vllms_kernel(recurrent):
    call = packed(4, (1, 3, 24, 40), torch.float32)
    theirs = upstream(recurrent.fused_recurrent_gated_delta_rule_packed_decode)
    assert_close(*both("packed_decode", call, "initial_state", "out", theirs=theirs))


def test_sigmoid_definition_is_vllms_kernel(fused):
    call = drop_padding(sigmoid("drafts", (1, 3, 24, 40), torch.float32))
    theirs = upstream(fused.fused_sigmoid_gating_delta_rule_update)
    assert_close(*both("sigmoid_gating_update", call, "initial_state", theirs=theirs))


def test_padding_is_skipped_as_by_vllms_kernel(fused):
    call = sigmoid("decode", SMALL, torch.float32)
    theirs = upstream(fused.fused_sigmoid_gating_delta_rule_update)
    (given, *_, state), (wanted, *_, ours) = both(
        "sigmoid_gating_update", call, "initial_state", theirs=theirs
    )
    assert_close(given[:, [0, 2, 3]], wanted[:, [0, 2, 3]])
    assert_close(state, ours)


@pytest.mark.parametrize("kda", [True, False])
def test_launch_definition_is_vllms_kernel(recurrent, kda):
    sizes = (2, 2, 8, 16)
    call = launch(9, sizes, kda, headwise=False) | drop_padding(where("drafts"))
    rest = {
        "N": 4, "T": 9, "B": 1, "H": 2, "HV": 2, "K": 8, "V": 16, "BK": 8, "BV": 8,
        "stride_init_state_token": call["h0"].stride(0),
        "stride_final_state_token": call["h0"].stride(0),
        "stride_indices_seq": 3, "stride_indices_tok": 1, "IS_BETA_HEADWISE": False,
    }  # fmt: skip
    results = []
    for choice in ("upstream", "kernel", "reference"):
        o, size = call["o"].clone(), call["h0"].stride(0)
        state = torch.empty_strided(call["h0"].shape, (size, 128, 8, 1)).copy_(call["h0"])
        with dispatch.override(choice):
            recurrent.fused_recurrent_gated_delta_rule_fwd_kernel[(1, 2, 8)](
                **(call | rest | {"o": o, "h0": state, "ht": state})
            )
        results.append((o, state))
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


@pytest.mark.parametrize("name", ["qwen3_next", "olmo_hybrid"])
def test_gates_definition_is_vllms_kernel(vllm_site, name):
    module = importlib.import_module(f"vllm.model_executor.models.{name}")
    given = packed(9, (1, 11, 1, 1), torch.float32)
    call = {one: given[one].contiguous() for one in ("A_log", "a", "b", "dt_bias")}
    olmo = name == "olmo_hybrid"
    theirs = upstream(module.fused_olmo_hybrid_gdn_gating if olmo else module.fused_gdn_gating)
    more = {"allow_neg_eigval": True} if olmo else {}
    assert_close(*both("olmo_gating" if olmo else "gating", call | more, theirs=theirs))


def test_sizes_that_break_vllms_grid(recurrent, monkeypatch):
    """512 sequences of Qwen3-Next are 65,536 programs of vLLM's, and 48 of ours."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    call = packed(512, (1, 32, 1, 128), torch.float32)
    with launch_sizes() as sizes:
        kernels.packed_decode(**call)
        kernels.split_qkvzba(
            torch.empty(1, 48).expand(70_000, 48), torch.empty(70_000, 8), 2, 4, 4, 4
        )
    assert sizes == [8, 48, 48]
    with dispatch.override("upstream"), ascend_grids(), pytest.raises(GridTooLarge):
        recurrent.fused_recurrent_gated_delta_rule_packed_decode(**call)


def test_gates_of_many_tokens(vllm_site, monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    module = importlib.import_module("vllm.model_executor.models.qwen3_next")
    call = {
        "A_log": torch.zeros(32),
        "a": torch.zeros(16_384, 32),
        "b": torch.zeros(16_384, 32),
        "dt_bias": torch.zeros(32),
    }
    with launch_sizes() as sizes:
        kernels.gating(**call)
    assert sizes == [48]
    with dispatch.override("upstream"), ascend_grids(), pytest.raises(GridTooLarge):
        module.fused_gdn_gating(**call)
