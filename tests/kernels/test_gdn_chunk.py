"""The chunked gated delta rule: kernels against the definition, and that against vLLM's kernels."""

from __future__ import annotations

import importlib

import numpy
import pytest
import torch
from interpreter import GridTooLarge, ascend_grids
from triton.runtime.interpreter import GridExecutor

from ascend_runtime.kernels.gdn import chunk, chunk_gated_delta_rule, chunk_prepare, chunk_state
from ascend_runtime.kernels.launch import MOST_PROGRAMS
from ascend_runtime.reference import gdn as reference
from ascend_runtime.reference.gdn.chunk_inputs import Sequences, cut


@pytest.fixture
def vllm_chunk(vllm_site):
    """vLLM's module."""
    return importlib.import_module("vllm.model_executor.layers.fla.ops.chunk")


def sequences(lengths: list[int]) -> Sequences:
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return cut(torch.empty(1, sum(lengths)), cu_seqlens, None, None)


def batch(lengths: list[int], sizes=(2, 4, 24, 40), dtype=torch.float16, seed: int = 0) -> dict:
    key_heads, heads, keys, values = sizes
    chance, tokens = torch.Generator().manual_seed(seed), sum(lengths)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    unit = torch.nn.functional.normalize
    return {
        "q": unit(draw(1, tokens, key_heads, keys), dim=-1).to(dtype),
        "k": unit(draw(1, tokens, key_heads, keys), dim=-1).to(dtype),
        "v": draw(1, tokens, heads, values).to(dtype),
        "g": -draw(1, tokens, heads).abs() / 4,
        "beta": draw(1, tokens, heads).sigmoid(),
        "initial_state": draw(len(lengths), heads, values, keys),
        "output_final_state": True,
        "cu_seqlens": sequences(lengths).cu_seqlens,
    }


def wanted(call: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition; its outputs are not rounded where those it is given are float64."""
    return reference.chunk_gated_delta_rule(**{**call, **{x: call[x].double() for x in "qkv"}})


def in_float32(call: dict, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernels, with float32 between them too, which vLLM's function does not take."""
    where = cut(call["k"], call["cu_seqlens"], None, None)
    flat = (call[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta"))
    scale = scale or call["k"].shape[-1] ** -0.5
    o, state = chunk.rule(*flat, scale, call["initial_state"], True, where)
    return o[None], state


def agree(got: tuple, right: tuple, tolerance: float) -> None:
    for ours, definition in zip(got, right, strict=True):
        torch.testing.assert_close(
            ours.double(), definition.double(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([1], (1, 3, 5, 1)), ([64], (1, 1, 24, 40)), ([70, 0, 5, 64, 1], (1, 2, 24, 40))],
    ids=str,
)
def test_kernels_are_the_definition(cores, lengths, sizes):
    call = batch(lengths, sizes, torch.float32)
    with ascend_grids():
        got = in_float32(call)
    agree(got, wanted(call), 1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 130, 16), (1, 2, 256, 130), (1, 1, 96, 192)], ids=str)
def test_kernels_in_slices_of_keys_and_values(sizes):
    call = batch([66, 3], sizes, torch.float32)
    agree(in_float32(call), wanted(call), 1e-5)


@pytest.mark.parametrize("unit", [False, True])
def test_function_is_the_definition(cores, unit):
    call = {**batch([70, 0, 5, 1]), "use_qk_l2norm_in_kernel": unit, "scale": 0.3}
    got = chunk_gated_delta_rule(**call)
    assert [x.dtype for x in got] == [torch.float16, torch.float32]
    agree(got, wanted(call), 4e-3)


def test_sequences_of_one_length():
    call = batch([66, 66], (1, 2, 24, 40))
    rows = {name: call[name].view(2, 66, *call[name].shape[2:]) for name in ("q", "k", "v")}
    rows |= {name: call[name].view(2, 66, -1) for name in ("g", "beta")}
    o, state = chunk_gated_delta_rule(**{**call, **rows, "cu_seqlens": None})
    one, one_state = chunk_gated_delta_rule(**call)
    assert torch.equal(o.view(one.shape), one) and torch.equal(state, one_state)
    agree((one, one_state), wanted(call), 4e-3)


def test_strides_are_free():
    call = batch([70, 3])
    strided = dict(call)
    for name in ("q", "k", "v", "g", "beta"):
        strided[name] = torch.stack([call[name]] * 2, -1)[..., 0]
    strided["initial_state"] = call["initial_state"].mT.contiguous().mT
    strided["cu_seqlens"] = torch.stack([call["cu_seqlens"].long()] * 2, 1)[:, 0]
    for ours, same in zip(
        chunk_gated_delta_rule(**strided), chunk_gated_delta_rule(**call), strict=True
    ):
        assert torch.equal(ours, same)


def test_states_are_optional(cores):
    call = {**batch([70, 4], (1, 1, 24, 40)), "initial_state": None}
    o, state = chunk_gated_delta_rule(**call)
    agree((o, state), wanted(call), 4e-3)
    alone, none = chunk_gated_delta_rule(**{**call, "output_final_state": False})
    assert torch.equal(alone, o) and none is None


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [3, 0], [0, 3]], ids=str)
def test_empty_sequence_keeps_its_state(cores, lengths):
    call = batch(lengths)
    o, state = chunk_gated_delta_rule(**call)
    empty = [n for n, length in enumerate(lengths) if not length]
    assert torch.equal(state[empty], call["initial_state"][empty])
    assert o.shape == call["v"].shape


def test_chunks_that_are_given_are_used():
    call, where = batch([70, 0, 64]), sequences([70, 0, 64])
    chunks = {"chunk_indices": where.chunk_indices, "chunk_offsets": where.chunk_offsets}
    alone, given = chunk_gated_delta_rule(**call), chunk_gated_delta_rule(**call, **chunks)
    assert torch.equal(alone[0], given[0]) and torch.equal(alone[1], given[1])
    chunks["chunk_indices"] = chunks["chunk_indices"].flip(0)
    assert not torch.equal(chunk_gated_delta_rule(**call, **chunks)[0], given[0])


@pytest.mark.parametrize("gate", [-80.0, 0.05])
def test_gates_far_below_and_above_zero(gate):
    call = batch([100], (1, 1, 8, 8), torch.float32)
    call["g"] = torch.full_like(call["g"], gate)
    with numpy.errstate(over="raise", invalid="raise"):  # the interpreter's arithmetic
        got = in_float32(call)
    agree(got, wanted(call), 1e-4)


@pytest.mark.parametrize("heads", [1, 5, 70])
def test_gates(cores, heads):
    lengths = [70, 0, 3]
    g, beta = torch.randn(73, heads).bfloat16(), torch.rand(73, heads).half()
    decay, strength = chunk_prepare.gates(g, beta, sequences(lengths))
    parts = [part.float().cumsum(0) for part in g.split([64, 6, 3])]
    torch.testing.assert_close(decay, torch.cat(parts).T)
    assert torch.equal(strength, beta.float().T)


def inverse(k: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 of k [tokens, K] and beta [tokens], without gates."""
    where = sequences([len(k)])
    return chunk_prepare.inverses(k[:, None], torch.zeros(1, len(k)), beta[None], where)[:, 0]


def test_inverse_of_all_ones_is_exact(cores):
    """Equal keys: A is all ones below its diagonal, the inverse 1 and, below the diagonal, -1."""
    k = torch.zeros(128, 16)
    k[:, 5] = 1
    exact = torch.eye(64) - torch.eye(64).roll(1, 0).tril(-1)
    assert torch.equal(inverse(k, torch.ones(128)), exact.expand(2, 64, 64))


def test_inverse_of_a_short_chunk():
    k = torch.zeros(5, 16)
    k[:, 5] = 1
    got = inverse(k, torch.ones(5))[0]
    exact = torch.eye(64)
    exact[1:5, :4] -= torch.eye(4)
    assert torch.equal(got, exact)


def test_inverse_of_almost_equal_keys_is_accurate():
    """The doubling product over 64 rows is off by 16 here."""
    chance = torch.Generator().manual_seed(0)
    noise = torch.randn(64, 32, generator=chance)
    k = torch.nn.functional.normalize(noise / 3 + torch.randn(32, generator=chance), dim=-1)
    a = (k.double() @ k.double().T).tril(-1)
    right = (torch.eye(64).double() + a).inverse()
    assert (inverse(k, torch.ones(64))[0] - right).abs().max() < 3e-6


def test_the_state_is_cut_finer_where_tasks_are_few(monkeypatch):
    """Two heads of 64 values are two tasks for 24 cores, unless a task takes half of them."""
    call = batch([66], (1, 2, 16, 64), torch.float32)
    grids = []
    monkeypatch.setattr(chunk_state, "matrix_grid", lambda tasks: (grids.append(tasks) or 1,))
    results = []
    for cores in ("1,2", "24,48"):
        monkeypatch.setenv("ASCEND_RUNTIME_CORES", cores)
        results.append(in_float32(call))
    assert grids == [2, 4]
    agree(results[1], wanted(call), 1e-5)
    agree(results[0], results[1], 1e-6)


def test_launches_are_small_where_vllms_are_too_large(vllm_chunk, monkeypatch):
    """60 sequences of a token, with 1100 heads."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    call = batch([1] * 60, (1, 1100, 1, 1), torch.float32)
    del call["output_final_state"]
    with ascend_grids(), pytest.raises(GridTooLarge, match="66000 programs"):
        vllm_chunk.chunk_gated_delta_rule_fwd(**call, scale=1.0, output_final_state=True)
    sizes = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *_, **__: sizes.append(*self.grid))
    in_float32(call)
    assert sizes == [48, 24, 24, 24, 24] and max(sizes) <= MOST_PROGRAMS


@pytest.mark.parametrize("lengths", [[1], [70, 0, 5, 1]], ids=str)
@pytest.mark.parametrize("sizes", [(2, 4, 32, 40), (1, 1, 128, 16)], ids=str)
def test_definition_is_vllms_kernels(vllm_chunk, lengths, sizes):
    call = batch(lengths, sizes, torch.float32)
    got = vllm_chunk.chunk_gated_delta_rule_fwd(**call, scale=sizes[2] ** -0.5)
    agree((got[1], got[3]), wanted(call), 1e-5)
