"""The patched vLLM's decoding of gated delta nets on a CPU, without Triton."""

from __future__ import annotations

import importlib
import inspect
import math

import pytest
import torch
from patched_kit import pristine
from torch.testing import assert_close
from vllm.model_executor.layers.fla import ops
from vllm.model_executor.layers.fla.ops import fused_recurrent, fused_sigmoid_gating, kda
from vllm.model_executor.models import olmo_hybrid, qwen3_next

from ascend_runtime.dispatch import _Kernel

OPS = "vllm/model_executor/layers/fla/ops"
MODELS = "vllm/model_executor/models"
FUNCTIONS = {
    "fused_recurrent_fwd": (OPS, fused_recurrent, "fused_recurrent_gated_delta_rule_fwd"),
    "packed_decode": (OPS, fused_recurrent, "fused_recurrent_gated_delta_rule_packed_decode"),
    "sigmoid_gating_update": (
        OPS,
        fused_sigmoid_gating,
        "fused_sigmoid_gating_delta_rule_update",
    ),
    "gating": (MODELS, qwen3_next, "fused_gdn_gating"),
    "olmo_gating": (MODELS, olmo_hybrid, "fused_olmo_hybrid_gdn_gating"),
}
LINES = torch.tensor([1, -1], dtype=torch.int32)
STARTS = torch.tensor([0, 1, 2], dtype=torch.int32)


def one(*shape: int, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, float(value))


def test_rule() -> None:
    """4 -> 2 by the decay, then half of 6 - 2 on top; the second sequence is padding."""
    state, half = one(2, 1, 1, 1, value=4), math.log(0.5)
    o, wrote = ops.fused_recurrent_gated_delta_rule(
        one(1, 2, 1, 1),
        one(1, 2, 1, 1),
        one(1, 2, 1, 1, value=6),
        one(1, 2, 1, value=half),
        one(1, 2, 1, value=0.5),
        1.0,
        state,
        cu_seqlens=STARTS,
        ssm_state_indices=LINES,
    )
    assert wrote.data_ptr() == state.data_ptr()
    assert o[0, 0].item() == pytest.approx(4) and state.flatten().tolist() == pytest.approx([4, 4])


def test_states_are_values_by_keys() -> None:
    """One token writes v [2] along k [3] into [2, 3]; all users of the cache agree on that."""
    k = torch.tensor([0.0, 1, 0])
    v = torch.tensor([5.0, 7])
    wanted = torch.tensor([[0.0, 5, 0], [0, 7, 0]])
    big, low = one(1, 1, value=40), one(1, value=-80)
    lines = LINES[:1]
    states = [torch.zeros(2, 1, 2, 3) for _ in range(4)]
    rows = k.view(1, 1, 1, 3), k.view(1, 1, 1, 3), v.view(1, 1, 1, 2)
    o = [torch.zeros(1, 1, 1, 2) for _ in range(4)]
    o[0], _ = ops.fused_recurrent_gated_delta_rule(
        *rows, one(1, 1, 1, value=0), one(1, 1, 1), 1.0, states[0], ssm_state_indices=lines
    )
    ops.fused_recurrent_gated_delta_rule_packed_decode(
        torch.cat([k, k, v])[None], -big, big, low, low, 1.0, states[1], o[1], lines
    )
    o[2], _ = ops.fused_sigmoid_gating_delta_rule_update(
        low, -big, big, low, *rows, scale=1.0, initial_state=states[2], ssm_state_indices=lines
    )
    decay = one(1, 1, 1, 3, value=-1)
    beta = one(1, 1, 1)
    # Here outputs have the shape of k, so there are as many values as keys.
    square = torch.zeros(2, 1, 3, 3)
    value = torch.tensor([5.0, 7, 9]).view(1, 1, 1, 3)
    out, _ = kda.fused_recurrent_kda(
        *rows[:2], value, decay, beta, 1.0, square, True, False, None, lines
    )
    for state, result in zip(states[:3], o[:3], strict=True):
        assert_close(state[1, 0], wanted)
        assert_close(result.flatten(), v)
    assert_close(square[1, 0, :, 1], torch.tensor([5.0, 7, 9]))
    assert out.flatten().tolist() == [5, 7, 9] and not square[1, 0, :, [0, 2]].any()


def test_kimi_decodes_with_a_decay_of_each_key() -> None:
    """Its host code launches the kernel itself, on a cache whose lines are apart."""
    pages = one(3, 7, value=8)
    state = pages[:, :4].view(3, 1, 2, 2)
    g = torch.tensor([0.5, 0.25]).log().expand(1, 2, 1, 2).contiguous()
    zero = torch.zeros(1, 2, 1, 2)
    o, wrote = kda.fused_recurrent_kda(
        one(1, 2, 1, 2), zero, zero, g, one(1, 2, 1), 1.0, state, True, False, STARTS, LINES
    )
    assert wrote is state and state[1, 0].tolist() == [[4, 2], [4, 2]]
    assert o[0, 0, 0].tolist() == [6, 6]
    assert (pages[[0, 2]] == 8).all() and (pages[:, 4:] == 8).all()


def test_packed_decode_of_padding_is_zero() -> None:
    state, out = one(2, 1, 1, 1), one(2, 1, 1, 1, value=7)
    gates = [one(2, 1), one(2, 1), one(1), one(1)]
    ops.fused_recurrent_gated_delta_rule_packed_decode(
        one(2, 3), *gates, 1.0, state, out, LINES.flip(0)
    )
    assert out[0].item() == 0 and out[1].item() not in (0, 7)
    assert state[0].item() == 1 and state[1].item() == out[1].item()


@pytest.mark.parametrize(
    ("function", "factor"),
    [(qwen3_next.fused_gdn_gating, 1), (olmo_hybrid.fused_olmo_hybrid_gdn_gating, 2)],
)
def test_gates(function, factor) -> None:
    rest = () if factor == 1 else (True,)
    g, beta = function(
        torch.tensor([0.0, 1.0]),
        torch.tensor([[0.0, 1.0], [25.0, -3.0]]),
        torch.tensor([[0.0, 2.0], [-1.0, 0.5]]),
        torch.tensor([0.0, 1.0]),
        *rest,
    )
    assert_close(g, torch.tensor([[[-0.693147, -5.781590], [-25.0, -0.345026]]]))
    assert_close(beta, factor * torch.tensor([[[0.5, 0.880797], [0.268941, 0.622459]]]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ours_take_the_arguments_of_vllms(base, name) -> None:
    folder, module, function = FUNCTIONS[name]
    edited = getattr(module, function)
    assert hasattr(edited, "__wrapped__")
    if folder == OPS:
        before = getattr(
            pristine(base.root, f"{folder}/{module.__name__.rpartition('.')[2]}.py"), function
        )
        assert list(inspect.signature(before).parameters) == list(
            inspect.signature(edited).parameters
        )
    theirs = inspect.signature(edited).parameters
    for kind in ("reference", "vendor") if name == "sigmoid_gating_update" else ("reference",):
        ours = getattr(importlib.import_module(f"ascend_runtime.{kind}.gdn"), name)
        given = inspect.signature(ours).parameters
        assert list(given) == list(theirs)
        assert [p.default for p in given.values()] == [p.default for p in theirs.values()]


def test_every_importer_has_the_decorated_one() -> None:
    kernel = fused_recurrent.fused_recurrent_gated_delta_rule_fwd_kernel
    assert isinstance(kernel, _Kernel)
    assert kda.fused_recurrent_gated_delta_rule_fwd_kernel is kernel
    for name in (
        "fused_recurrent_gated_delta_rule_packed_decode",
        "fused_sigmoid_gating_delta_rule_update",
    ):
        assert getattr(qwen3_next, name) is getattr(ops, name)
        assert hasattr(getattr(ops, name), "__wrapped__")
