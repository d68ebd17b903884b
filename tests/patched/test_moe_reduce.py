"""W17a: routed experts are reduced once, whoever does it, and shared ones always once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from model_kit import tensor_parallel
from torch import nn
from vllm.model_executor.layers.fused_moe.runner.default_moe_runner import DefaultMoERunner
from vllm.model_executor.models import dots1, hunyuan_v1, kimi_linear, minimax_m2, step3_text

RANKS = 2
HIDDEN = torch.arange(6.0).view(3, 2) + 1


class Experts(nn.Module):
    """Gives `routed`, with `shared` before it if the class it stands for does; asks vLLM's runner.

    The parts of the ranks are equal, and the stand-in for the all-reduce multiplies by their
    number: a whole is RANKS times a part.
    """

    def __init__(self, reduced: bool, shared: bool) -> None:
        super().__init__()
        kernel = SimpleNamespace(output_is_reduced=lambda: reduced)
        self.runner = object.__new__(DefaultMoERunner)
        self.runner.__dict__["quant_method"] = SimpleNamespace(moe_kernel=kernel)
        self.reduced, self.shared = reduced, shared

    def forward(self, hidden_states: torch.Tensor, router_logits: torch.Tensor) -> object:
        routed = hidden_states * (RANKS if self.reduced else 1)
        return (hidden_states * 10, routed) if self.shared else routed

    def __getattr__(self, name: str) -> object:
        if name.endswith(("must_reduce_shared_expert_outputs", "_tensor_model_parallel")):
            return getattr(self.runner, name)
        return super().__getattr__(name)


def block(cls: type, tp_size: int, reduced: bool, shared: bool = False, **fields: object) -> object:
    model = cls.__new__(cls)
    nn.Module.__init__(model)
    model.gate = lambda hidden: (hidden, None)
    model.tp_size = tp_size
    model.routed_scaling_factor = 1.0
    model.experts = Experts(reduced, shared)
    for name, value in fields.items():
        setattr(model, name, value)
    return model


def ten(hidden: torch.Tensor) -> torch.Tensor:
    """Kimi-Linear's shared experts are beside the layer."""
    return hidden * 10


BLOCKS = {
    "minimax_m2": (minimax_m2.MiniMaxM2MoE, False, {}),
    "step3_text": (step3_text.FusedMoEBlock, False, {}),
    "dots1": (dots1.Dots1MoE, True, {"shared_experts": True}),
    "hunyuan_v1": (hunyuan_v1.HunYuanSparseMoeBlock, True, {"shared_mlp": True}),
    "kimi_linear": (kimi_linear.KimiMoE, False, {"shared_experts": ten, "num_shared_experts": 1}),
}


def run(name: str, tp_size: int, reduced: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    cls, shared, fields = BLOCKS[name]
    with tensor_parallel(tp_size, 0) as seen:
        return block(cls, tp_size, reduced, shared, **fields)(HIDDEN), seen


def has_shared(name: str) -> bool:
    return name not in ("minimax_m2", "step3_text")


@pytest.mark.parametrize("name", BLOCKS)
def test_one_reduction_of_the_sum_if_the_kernel_did_none(name: str) -> None:
    """What it was before the edit, to the bit."""
    result, seen = run(name, RANKS, reduced=False)
    part = HIDDEN * (11 if has_shared(name) else 1)
    assert torch.equal(result, part * RANKS)
    assert len(seen) == 1
    assert torch.equal(seen[0], part)


@pytest.mark.parametrize("name", BLOCKS)
def test_routed_experts_are_not_reduced_again(name: str) -> None:
    result, seen = run(name, RANKS, reduced=True)
    whole = HIDDEN * RANKS * (11 if has_shared(name) else 1)
    assert torch.equal(result, whole)
    assert len(seen) == has_shared(name)
    if seen:
        assert torch.equal(seen[0], HIDDEN * 10)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_one_rank_reduces_nothing(name: str, reduced: bool) -> None:
    assert run(name, 1, reduced)[1] == []


def test_a_platforms_own_layer_decides() -> None:
    """As Ascend's does: the output goes to the layer, and what it returns is the result."""
    asked = []

    class Own(Experts):
        def maybe_all_reduce_tensor_model_parallel(self, hidden: torch.Tensor) -> torch.Tensor:
            asked.append(hidden)
            return hidden + 1

    model = block(minimax_m2.MiniMaxM2MoE, RANKS, False)
    model.experts = Own(False, False)
    with tensor_parallel(RANKS, 0) as seen:
        assert torch.equal(model(HIDDEN), HIDDEN + 1)
    assert len(asked) == 1
    assert torch.equal(asked[0], HIDDEN)
    assert seen == []
