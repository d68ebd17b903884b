"""The chunked gated delta rule in plain torch: hand numbers, the recurrence, odd batches."""

from __future__ import annotations

import math

import pytest
import torch

from ascend_runtime.gdn import build_chunk_metadata
from ascend_runtime.reference.gdn import chunk_gated_delta_rule, chunk_inputs

CPU = torch.device("cpu")


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def batch(lengths: list[int], sizes=(2, 4, 16, 24), dtype=torch.float64, seed: int = 0) -> dict:
    """Draw a call; in float64 the outputs are not rounded, though the arithmetic is float32."""
    key_heads, heads, keys, values = sizes
    chance, tokens = torch.Generator().manual_seed(seed), sum(lengths)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    return {
        "q": draw(1, tokens, key_heads, keys).to(dtype),
        "k": draw(1, tokens, key_heads, keys).to(dtype),
        "v": draw(1, tokens, heads, values).to(dtype),
        "g": -draw(1, tokens, heads).abs() / 4,
        "beta": draw(1, tokens, heads).sigmoid(),
        "initial_state": draw(len(lengths), heads, values, keys),
        "output_final_state": True,
        "cu_seqlens": starts(lengths),
        "use_qk_l2norm_in_kernel": True,
    }


def recurrence(call: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule token by token, in float64."""
    q, k, v, g, beta = (call[name][0].double() for name in ("q", "k", "v", "g", "beta"))
    if call["use_qk_l2norm_in_kernel"]:
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    scale = call.get("scale") or k.shape[-1] ** -0.5
    q, k = (x.repeat_interleave(v.shape[1] // k.shape[1], 1) for x in (q, k))
    out, states = torch.zeros_like(v), call["initial_state"].double().clone()
    bounds = call["cu_seqlens"].tolist()
    for state, first, end in zip(states, bounds, bounds[1:], strict=False):
        for t in range(first, end):
            state *= g[t].exp()[:, None, None]
            new = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
            state += torch.einsum("hv,hk->hvk", new, k[t])
            out[t] = scale * torch.einsum("hvk,hk->hv", state, q[t])
    return out[None], states


def agrees(call: dict, tolerance: float = 1e-5) -> None:
    o, state = chunk_gated_delta_rule(**call)
    wanted, wanted_state = recurrence(call)
    torch.testing.assert_close(o.double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state.double(), wanted_state, rtol=tolerance, atol=tolerance)


def test_by_hand():
    """K = V = 1, half of the state decays, half of the error is written."""
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    o, state = chunk_gated_delta_rule(
        one,
        one,
        torch.tensor([2.0, 6, 0], dtype=torch.float64).view(1, 3, 1, 1),
        torch.full((1, 3, 1), math.log(0.5)),
        torch.full((1, 3, 1), 0.5),
        scale=1.0,
        initial_state=torch.full((2, 1, 1, 1), 4.0),
        output_final_state=True,
        cu_seqlens=torch.tensor([0, 1, 3]),
    )
    torch.testing.assert_close(o.flatten().float(), torch.tensor([2.0, 4, 1]))
    torch.testing.assert_close(state.flatten(), torch.tensor([2.0, 1]))


@pytest.mark.parametrize("lengths", [[1], [63], [64], [65], [150], [70, 0, 5, 64, 1], [0, 200, 0]])
@pytest.mark.parametrize("sizes", [(2, 4, 16, 24), (1, 3, 5, 1), (2, 2, 40, 200)], ids=str)
def test_is_the_recurrence(lengths, sizes):
    agrees(batch(lengths, sizes))


def test_is_the_recurrence_with_the_keys_as_they_are():
    call = batch([130], (1, 2, 8, 8))
    call.update(use_qk_l2norm_in_kernel=False, scale=0.3, k=call["k"] / 4)
    agrees(call)


def test_keys_of_256_and_many_heads():
    """More than 128 values, and more than 64 heads."""
    agrees(batch([66], (1, 1, 256, 130)))
    agrees(batch([66, 3], (10, 70, 4, 4)))


@pytest.mark.parametrize("gate", [-80.0, 0.05])
def test_gates_far_below_and_above_zero(gate):
    """exp(G_i - G_j) above the diagonal would overflow; gates above zero count as they are."""
    call = batch([100, 64], (1, 1, 8, 8))
    call["g"] = torch.full_like(call["g"], gate)
    agrees(call, 1e-4)


def test_equal_keys_each_overwrite_what_the_one_before_wrote():
    """The system is all ones below its diagonal; its solution is v_t - v_(t-1), exactly."""
    k = torch.zeros(1, 130, 1, 8, dtype=torch.float64)
    k[..., 3] = 1
    v = torch.randint(-9, 9, (1, 130, 1, 4)).double()
    zero, one = torch.zeros(1, 130, 1), torch.ones(1, 130, 1)
    o, state = chunk_gated_delta_rule(k, k, v, zero, one, 1.0, output_final_state=True)
    assert torch.equal(o, v)
    assert torch.equal(state[0, 0, :, 3], v[0, -1, 0].float())
    assert state.count_nonzero() == v[0, -1].count_nonzero()


def test_keys_that_are_almost_equal_stay_accurate():
    call = batch([128], (1, 1, 16, 8))
    call["k"] = call["k"] / 50 + 1
    call["beta"] = torch.ones_like(call["beta"])
    call["g"] = torch.zeros_like(call["g"])
    agrees(call, 1e-4)


def test_sequences_of_one_length():
    """A row is a sequence, with its own gates and states."""
    call = batch([70, 70, 70])
    o, state = chunk_gated_delta_rule(**call)
    rows = {name: call[name].view(3, 70, *call[name].shape[2:]) for name in ("q", "k", "v")}
    rows |= {name: call[name].view(3, 70, -1) for name in ("g", "beta")}
    o_rows, state_rows = chunk_gated_delta_rule(**{**call, **rows, "cu_seqlens": None})
    assert o_rows.shape == (3, 70, 4, 24)
    assert torch.equal(o_rows.view(o.shape), o) and torch.equal(state_rows, state)


@pytest.mark.parametrize("lengths", [[70, 0, 5], [0, 5], [0, 0], [5, 0]], ids=str)
def test_empty_sequence_keeps_its_state(lengths):
    call = batch(lengths)
    o, state = chunk_gated_delta_rule(**call)
    for n, length in enumerate(lengths):
        same = torch.equal(state[n], call["initial_state"][n].float())
        assert same is (length == 0)
    assert o.shape == call["v"].shape


def test_without_an_initial_state_it_is_zero():
    call = batch([70, 4])
    zeros = {**call, "initial_state": torch.zeros_like(call["initial_state"])}
    given, none = (
        chunk_gated_delta_rule(**one) for one in (zeros, {**call, "initial_state": None})
    )
    assert torch.equal(given[0], none[0]) and torch.equal(given[1], none[1])


def test_dtypes():
    call = batch([70], dtype=torch.bfloat16)
    before = call["initial_state"].clone()
    o, state = chunk_gated_delta_rule(**call)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(call["initial_state"], before)
    wanted, wanted_state = recurrence(call)
    torch.testing.assert_close(o.double(), wanted, rtol=8e-3, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=1e-4, atol=1e-5)
    assert chunk_gated_delta_rule(**{**call, "output_final_state": False})[1] is None


def test_gates_of_bfloat16_are_summed_in_float32():
    call = batch([64], (1, 1, 4, 4))
    call["g"] = torch.full_like(call["g"], -0.01).bfloat16()
    agrees(call)


def test_strides_are_free():
    call = batch([70, 3])
    strided = dict(call)
    for name in ("q", "k", "v", "g", "beta"):
        strided[name] = torch.stack([call[name]] * 2, -1)[..., 0]
        assert not strided[name].is_contiguous()
    strided["initial_state"] = call["initial_state"].mT.contiguous().mT
    o, state = chunk_gated_delta_rule(**strided)
    wanted = chunk_gated_delta_rule(**call)
    assert torch.equal(o, wanted[0]) and torch.equal(state, wanted[1])
    assert o.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_chunks_that_are_given_are_used(monkeypatch, dtype):
    lengths = [70, 0, 130]
    call = batch(lengths)
    o, state = chunk_gated_delta_rule(**call)
    meta = build_chunk_metadata(starts(lengths), device=CPU)
    chunks = {
        "chunk_indices": meta.chunk_indices.to(dtype),
        "chunk_offsets": meta.chunk_offsets.to(dtype),
    }
    alone = chunk_gated_delta_rule(**call, chunk_indices=chunks["chunk_indices"])
    assert torch.equal(alone[0], o)
    monkeypatch.setattr(chunk_inputs, "build_chunk_metadata", None)
    given = chunk_gated_delta_rule(**call, **chunks)
    assert torch.equal(given[0], o) and torch.equal(given[1], state)
    chunks["chunk_indices"] = chunks["chunk_indices"].flip(0)
    assert not torch.equal(chunk_gated_delta_rule(**call, **chunks)[0], o)


def test_chunks_that_are_given_are_not_read_back(monkeypatch):
    """What is on a device stays there; without chunks one copy comes back."""
    reads = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: reads.append(x.shape) or cpu(x))
    k, cu = torch.zeros(1, 70, 1, 4), starts([70])
    meta = build_chunk_metadata(cu, device=CPU)
    chunk_inputs.cut(k, cu, meta.chunk_indices, meta.chunk_offsets)
    chunk_inputs.cut(k, None, None, None)
    assert reads == []
    chunk_inputs.cut(k, cu, None, None)
    assert reads == [(2,)]


WRONG = [
    ({"q": torch.zeros(1, 8, 2, 16)}, AssertionError, "of one dtype"),
    ({"beta": torch.zeros(1, 8, 4, 1)}, AssertionError, r"beta must be \[B, T, HV\]"),
    ({"cu_seqlens": torch.tensor([0, 8])}, ValueError, r"must be \[1, 4, 24, 16\], not \[2, 4"),
    ({"initial_state": torch.zeros(2, 4, 16, 24)}, ValueError, r"\[2, 4, 24, 16\], not"),
    ({"g": torch.zeros(1, 8, 2)}, ValueError, r"g must be \[1, 8, 4\]"),
    ({"v": torch.zeros(1, 8, 3, 24).double()}, ValueError, "3 value heads cannot share 2"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG, ids=[w[2] for w in WRONG])
def test_refuses(change, error, words):
    with pytest.raises(error, match=words):
        chunk_gated_delta_rule(**{**batch([5, 3]), **change})


def test_refuses_what_vllm_does():
    with pytest.raises(AssertionError, match="not float32"):
        chunk_gated_delta_rule(**batch([8], dtype=torch.float32))
    with pytest.raises(AssertionError, match="at most 256 elements, not 257"):
        chunk_gated_delta_rule(**batch([8], (1, 1, 257, 4)))
    rows = {name: x.view(2, 4, *x.shape[2:]) for name, x in batch([8]).items() if name in "qkv"}
    gates = {name: batch([8])[name].view(2, 4, -1) for name in ("g", "beta")}
    with pytest.raises(ValueError, match="batch size must be 1, not 2"):
        chunk_gated_delta_rule(**{**batch([8]), **rows, **gates})
