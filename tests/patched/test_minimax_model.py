"""W17c-e: MiniMax-M2 loads fp8 checkpoints as bf16 and hands out auxiliary hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from minimax_kit import LAYERS, H, PassOn, V, built, matrices
from model_kit import engine_config, llama, one_rank, randomized, with_attention
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models import minimax_m2
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3, supports_eagle3
from vllm.sequence import IntermediateTensors

from ascend_runtime.fp8_dequant import dequantize_block

BLOCK = (16, 16)
FP8 = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
POSITIONS = torch.arange(5)


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


def pairs() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, (n, k) in matrices():
        weight = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-n // BLOCK[0]), -(-k // BLOCK[1]), generator=generator) + 0.5
        yield name, weight, scale


PLAIN = {
    "model.embed_tokens.weight": torch.full((V, H), 0.25),
    "lm_head.weight": torch.full((V, H), 0.75),
    "model.norm.weight": torch.full((H,), 1.5),
}


def fp8_stream(scale_first: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint whose pairs are parted by the head, which is no `model.`: two runs of names."""
    found = list(pairs())
    firsts = [(n + "_scale_inv", s) if scale_first else (n, w) for n, w, s in found]
    seconds = [(n, w) if scale_first else (n + "_scale_inv", s) for n, w, s in found]
    yield from firsts
    yield from PLAIN.items()
    yield from seconds


@pytest.mark.parametrize("scale_first", [False, True])
def test_fp8_checkpoint_loads_as_its_bf16_weights(config, scale_first: bool) -> None:
    expected = built(config)
    plain = {name: dequantize_block(weight, scale, BLOCK) for name, weight, scale in pairs()}
    expected.load_weights(iter((plain | PLAIN).items()))
    model = built(config, quantization_config=FP8)
    assert model.quant_config is None
    model.load_weights(fp8_stream(scale_first))
    wanted = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, wanted[name]), name
    qkv = model.model.layers[1].self_attn.qkv_proj.weight
    assert torch.equal(qkv[:32], plain["model.layers.1.self_attn.q_proj.weight"].float())
    assert torch.equal(model.lm_head.weight[:V], PLAIN["lm_head.weight"])
    w13 = model.model.layers[3].block_sparse_moe.experts.w13_weight
    assert torch.equal(w13[1][48:], plain["model.layers.3.block_sparse_moe.experts.1.w3.weight"])


def test_a_missing_scale_is_named(config) -> None:
    lost = "model.layers.2.self_attn.k_proj.weight"
    model = built(config, quantization_config=FP8)
    stream = (x for x in fp8_stream(False) if x[0] != f"{lost}_scale_inv")
    with pytest.raises(ValueError, match=rf"no counterpart in the checkpoint: {lost}$"):
        model.load_weights(stream)


def test_other_checkpoints_pass_untouched(config, monkeypatch) -> None:
    """The loader gets the very iterator that came in."""
    seen = []
    loader = SimpleNamespace(load_weights=lambda weights: seen.append(weights))
    monkeypatch.setattr(minimax_m2, "AutoWeightsLoader", lambda model: loader)
    stream = iter([])
    model = built(config)
    model.load_weights(stream)
    model = built(config, quantization_config=FP8)
    model.quant_config = SimpleNamespace(name="fp8 on a GPU")
    model.load_weights(stream)
    assert all(weights is stream for weights in seen)
    assert len(seen) == 2


class Step(nn.Module):
    """A layer that adds one, with the residual that the first layer starts."""

    def forward(self, positions, hidden_states, residual):
        return hidden_states + 1, torch.zeros_like(hidden_states)


@pytest.fixture
def stepping(config) -> minimax_m2.MiniMaxM2ForCausalLM:
    model = built(config)
    model.model.norm.weight.data.fill_(1)
    model.model.layers = nn.ModuleList(Step() for _ in range(LAYERS))
    return model


X = torch.randint(-9, 9, (5, H), generator=torch.Generator().manual_seed(1)).float()


def assert_states(aux: list[torch.Tensor], steps: tuple[int, ...]) -> None:
    assert len(aux) == len(steps)
    for state, n in zip(aux, steps, strict=True):
        assert torch.equal(state, X + n)


def test_aux_states_also_of_the_last_layer(stepping) -> None:
    stepping.set_aux_hidden_state_layers((0, 2, 4))
    hidden, aux = stepping(None, POSITIONS, inputs_embeds=X)
    assert_states(aux, (0, 2, 4))
    expected, _ = stepping.model.norm(X + 4, torch.zeros_like(X))
    assert torch.equal(hidden, expected)


def test_without_layers_a_plain_tensor_comes_back(stepping) -> None:
    assert stepping.model.aux_hidden_state_layers == ()
    result = stepping(None, POSITIONS, inputs_embeds=X)
    expected, _ = stepping.model.norm(X + 4, torch.zeros_like(X))
    assert torch.equal(result, expected)


def test_other_stages_of_a_pipeline(stepping, monkeypatch) -> None:
    stage = SimpleNamespace(is_first_rank=True, is_last_rank=False)
    monkeypatch.setattr(minimax_m2, "get_pp_group", lambda: stage)
    stepping.set_aux_hidden_state_layers((0, 2))
    sent = stepping(None, POSITIONS, inputs_embeds=X)
    assert isinstance(sent, IntermediateTensors)
    assert torch.equal(sent["hidden_states"], X + 4)
    stage.is_first_rank, stage.is_last_rank = False, True
    stepping.model.start_layer = 2
    stepping.set_aux_hidden_state_layers((1, 3, 4))
    sent = IntermediateTensors({"hidden_states": X + 2, "residual": torch.zeros_like(X)})
    _, aux = stepping(None, POSITIONS, intermediate_tensors=sent)
    assert_states(aux, (3, 4))


def test_state_n_is_what_goes_into_layer_n(config) -> None:
    """With vLLM's own layers, whose residual is apart from their output."""
    model = randomized(with_attention(built(config)))
    inputs = {}
    for n, layer in enumerate(model.model.layers):
        layer.block_sparse_moe = PassOn()
        layer.register_forward_pre_hook(
            lambda module, given, n=n: inputs.__setitem__(
                n, given[1] if given[2] is None else given[1] + given[2]
            )
        )
    model.set_aux_hidden_state_layers((0, 1, 2, 3, 4))
    with torch.inference_mode():
        hidden, aux = model(None, POSITIONS, inputs_embeds=X)
        model.set_aux_hidden_state_layers(())
        alone = model(None, POSITIONS, inputs_embeds=X)
    assert [torch.equal(aux[n], inputs[n]) for n in range(LAYERS)] == [True] * LAYERS
    assert torch.equal(hidden, alone)
    torch.testing.assert_close(model.model.norm(aux[4]), hidden)


def test_the_interface_is_inherited(stepping) -> None:
    cls = minimax_m2.MiniMaxM2ForCausalLM
    assert supports_eagle3(stepping)
    assert supports_eagle3(cls)
    assert issubclass(minimax_m2.MiniMaxM2Model, EagleModelMixin)
    assert SupportsEagle3 in cls.__mro__
    assert "set_aux_hidden_state_layers" not in vars(cls)
    assert stepping.get_eagle3_default_aux_hidden_state_layers() == (2, 2, 1)
