"""Qwen3-Next's split, norm and rotary embedding: the kernel, its definition, and vLLM's kernel."""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes
from torch.testing import assert_close

from ascend_runtime import dispatch, qwen
from ascend_runtime.kernels import qwen as kernels
from ascend_runtime.reference import qwen as reference

EPS = 1e-6
KINDS = pytest.mark.parametrize(
    ("gate", "dtype"),
    [(True, torch.float32), (False, torch.float32), (True, torch.float16)],
    ids=str,
)
#: Tokens, heads, heads of k and v, their size, and how much of it is rotated.
SIZES = [
    (0, 2, 1, 8, 4),
    (1, 1, 1, 2, 2),
    (3, 3, 2, 24, 10),
    (4, 5, 1, 40, 40),
    (48, 1, 1, 12, 6),
    (2, 2, 1, 256, 64),
]


def case(
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary: int,
    gate: bool = True,
    dtype: torch.dtype = torch.float32,
    positions: int = 20,
) -> dict:
    """Arguments; the projection is a part of something with more columns."""
    width = (heads * (1 + gate) + 2 * kv_heads) * head_dim
    angles = torch.rand(positions, rotary // 2) * 6.3
    return {
        "qkv": torch.randn(tokens, width + 3).to(dtype)[:, 3:],
        "q_weight": torch.randn(head_dim).to(dtype),
        "k_weight": torch.randn(head_dim).to(dtype),
        "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype),
        "positions": torch.randint(0, positions, (tokens,)),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": EPS,
        "gate": gate,
    }


def check(call: dict) -> None:
    with ascend_grids():
        found = kernels.split_qkv_norm_rope(**call)
    q, k, v, gate = found
    wanted = reference.split_qkv_norm_rope(**call)
    assert all(one.is_contiguous() for one in found if one is not None)
    # Off by one in the last place where a sum in another order is rounded the other way.
    close = {"rtol": 4e-3, "atol": 4e-3} if q.dtype == torch.float16 else {}
    assert_close(q, wanted[0], **close)
    assert_close(k, wanted[1], **close)
    assert torch.equal(v, wanted[2])
    if call["gate"]:
        assert torch.equal(gate, wanted[3])
    else:
        assert gate is None


@KINDS
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernel_is_the_definition(cores, sizes, gate, dtype):
    check(case(*sizes, gate, dtype))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    "section", [(3, 3, 2), (2, 1, 5), (2, 2, 4), (6, 2, 0), (8, 0, 0)], ids=str
)
def test_kernel_takes_three_axes(cores, section, interleaved):
    call = case(4, 2, 1, 20, 16)
    call |= {"mrope_section": section, "mrope_interleaved": interleaved}
    check(call | {"positions": torch.randint(0, 20, (3, 30))[:, 4:8]})


def test_kernel_takes_positions_in_steps_and_of_text(cores):
    call = case(4, 2, 1, 20, 16) | {"mrope_section": (3, 3, 2), "mrope_interleaved": True}
    check(call)
    table = torch.randint(0, 20, (3, 30), dtype=torch.int32)
    check(call | {"positions": table[:, 4:12:2]})


def test_kernel_takes_strides_and_dtypes(cores):
    """Tokens side by side, tables in float32 for activations in float16, positions in steps."""
    call = case(6, 2, 1, 16, 8, dtype=torch.float16)
    wide = {"cos_sin_cache": torch.rand(20, 8), "q_weight": torch.randn(32)[::2]}
    check(call | wide | {"positions": torch.arange(12)[::2]})
    check(call | {"qkv": torch.randn(96, 6).half().T})


def test_rounds_where_the_definition_does():
    """Nearly all numbers are the same bits in float16; were a rounding left out, many were not."""
    call = case(64, 2, 1, 16, 16, dtype=torch.float16)
    call["cos_sin_cache"] = torch.rand(20, 16)
    found, wanted = kernels.split_qkv_norm_rope(**call)[0], reference.split_qkv_norm_rope(**call)[0]
    assert (found != wanted).float().mean() < 0.01


def test_bfloat16_goes_through(cores):
    call = case(4, 2, 1, 16, 8, dtype=torch.bfloat16)
    found, wanted = kernels.split_qkv_norm_rope(**call), reference.split_qkv_norm_rope(**call)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_heads_that_it_takes():
    assert kernels.takes_heads(1024, 1024) and kernels.takes_heads(2, 2)
    assert not kernels.takes_heads(1025, 64) and not kernels.takes_heads(64, 0)
    call = case(1, 1, 1, 1026, 2)
    assert not kernels.split_qkv_norm_rope_fits(*call.values())
    assert kernels.split_qkv_norm_rope_fits(*case(1, 1, 1, 1024, 2).values())
    with pytest.raises(RuntimeError, match="1026 numbers of a head fit no tile"):
        kernels.split_qkv_norm_rope(**call)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_heads": 3}, "qkv is"),
        ({"positions": torch.zeros(3, 4, dtype=torch.long)}, "no sections of 2"),
        ({"positions": torch.zeros(2, dtype=torch.long)}, "no positions of 4 tokens"),
    ],
)
def test_shapes_that_do_not_go_together(change, why):
    with pytest.raises(ValueError, match=why):
        kernels.split_qkv_norm_rope(**case(4, 2, 1, 8, 4) | change)


def test_cores_all_have_work(monkeypatch):
    """With few tokens a program does a head; with many all that fit a tile."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    with launch_sizes() as sizes:
        for tokens in (1, 2, 3, 47, 48, 70_000):
            kernels.split_qkv_norm_rope(**case(tokens, 16, 2, 4, 4))
    assert sizes == [16, 32, 48, 48, 48, 48]


def test_more_tokens_than_vllms_kernel_has_programs_for(vllm_site, monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "1,2")
    tokens = 65_536
    call = case(tokens, 1, 1, 2, 2, gate=False)
    call |= {"positions": torch.randint(0, 20, (3, tokens)), "mrope_section": (0, 1, 0)}
    with launch_sizes() as sizes:
        kernels.split_qkv_norm_rope(**call)
    assert sizes == [2]
    mrope = importlib.import_module("vllm.model_executor.layers.rotary_embedding.mrope")
    table = torch.ones(3, tokens, 1)
    q = torch.ones(tokens, 2)
    with ascend_grids(), pytest.raises(GridTooLarge):
        mrope.triton_mrope(q, q, table, table, [0, 1, 0], 2, 2, False)


@pytest.mark.parametrize("interleaved", [True, False])
def test_axes_are_those_of_vllms_kernel(vllm_site, interleaved):
    """What it rotates is normalised, so that the definition's norm leaves it as it is."""
    mrope = importlib.import_module("vllm.model_executor.layers.rotary_embedding.mrope")
    section = (4, 2, 2)
    call = case(5, 2, 1, 32, 16, gate=False)
    heads = torch.randn(5, 4, 32)
    heads = heads / heads.square().mean(-1, keepdim=True).sqrt()
    call |= {
        "qkv": heads.flatten(1),
        "q_weight": torch.zeros(32),
        "k_weight": torch.zeros(32),
        "positions": torch.randint(0, 20, (3, 5)),
        "eps": 0.0,
    }
    cos, sin = call["cos_sin_cache"][call["positions"]].chunk(2, dim=-1)
    q, k = heads[:, :2].flatten(1).clone(), heads[:, 2].clone()
    theirs = mrope.triton_mrope(q, k, cos, sin, list(section), 32, 16, interleaved)
    ours = reference.split_qkv_norm_rope(
        **call, mrope_section=section, mrope_interleaved=interleaved
    )
    assert_close(ours[:2], theirs)


def test_operator_runs_the_kernel():
    call = case(5, 2, 1, 16, 8)
    given = (*call.values(), [], False)
    with dispatch.override("kernel", "qwen"):
        with launch_sizes() as sizes:
            qwen._split_op(*given)
        made = qwen._split_op(*given)
    assert len(sizes) == 1
    assert_close(tuple(made), reference.split_qkv_norm_rope(*given))
