"""W21: the predictor of a rotated GLM-5 rotates back what it takes in, with one matrix for all."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from mla_kit import LAYERS, H, V, main_model, predictor
from model_kit import engine_config, llama, one_rank, randomized
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models import deepseek_mtp, deepseek_v2

USED = {"is_rot_used": True}
GENERATOR = torch.Generator().manual_seed(0)
Q = torch.linalg.qr(torch.randn(H, H, generator=GENERATOR, dtype=torch.float64))[0].float()
POSITIONS = torch.arange(5)


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


def checkpoint(layers: int = 1, rot: bool = True) -> dict[str, torch.Tensor]:
    """Some weights of each predictor layer, in the names of checkpoints."""
    make = torch.Generator().manual_seed(1)
    weights = {"rot.weight": Q} if rot else {}
    for n in range(LAYERS, LAYERS + layers):
        for name, shape in {
            "enorm": (H,),
            "hnorm": (H,),
            "eh_proj": (H, 2 * H),
            "shared_head.norm": (H,),
            "self_attn.o_proj": (H, 16),
            "embed_tokens": (V, H),
        }.items():
            weights[f"model.layers.{n}.{name}.weight"] = torch.randn(shape, generator=make)
    return weights


class Block(nn.Module):
    """In the place of the decoder layer, whose attention needs a kernel."""

    def forward(self, positions, hidden_states, residual):
        return hidden_states, torch.zeros_like(hidden_states)


def without_attention(model: deepseek_mtp.DeepSeekMTP) -> deepseek_mtp.DeepSeekMTP:
    for layer in model.model.layers.values():
        layer.mtp_block = Block()
    return model


@pytest.mark.parametrize("step", [0, 1])
def test_rotated_states_give_what_the_unrotated_gave(config, step: int) -> None:
    """Both layers use the one matrix; the monkey-patch left that of the second to chance."""
    weights = checkpoint(layers=2)
    models = [
        predictor(config, description, num_nextn_predict_layers=2) for description in (None, USED)
    ]
    for model in models:
        randomized(model)
        model.load_weights(iter(weights.items()))
        without_attention(model)
    plain, fitted = models
    hidden = torch.randn(5, H, generator=GENERATOR)
    embeds = torch.randn(5, H, generator=GENERATOR)
    with torch.inference_mode():
        before = plain(None, POSITIONS, hidden, None, embeds, step)
        after = fitted(None, POSITIONS, hidden @ Q, None, embeds, step)
        unfitted = plain(None, POSITIONS, hidden @ Q, None, embeds, step)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    assert (unfitted - before).abs().max() > 0.1
    assert [name for name, _ in fitted.named_parameters() if "rot." in name] == ["model.rot.weight"]


def test_matrix_is_loaded_from_the_checkpoint(config) -> None:
    model = predictor(config, USED)
    loaded = model.load_weights(iter(checkpoint().items()))
    assert torch.equal(model.model.rot.weight, Q)
    assert "model.rot.weight" in loaded
    assert not any("rot.weight" in name for name, _ in model.model.layers.named_parameters())


@pytest.mark.parametrize("description", [None, {}, {"is_rot_used": False}])
def test_off_is_upstream_to_the_bit(config, description) -> None:
    """No layer, and all else as it was; a tensor that is there nevertheless is skipped."""
    weights = checkpoint(rot=False)
    model = predictor(config, description)
    assert model.model.rot is None
    names = {name for name, _ in model.named_parameters()}
    for rot in ({}, {"rot.weight": Q}):
        loaded = model.load_weights(iter((rot | weights).items()))
        assert loaded == {
            "model.embed_tokens.weight",
            *(f"model.layers.{LAYERS}.{n}.weight" for n in ("enorm", "hnorm", "eh_proj")),
            f"model.layers.{LAYERS}.shared_head.norm.weight",
            f"model.layers.{LAYERS}.mtp_block.self_attn.o_proj.weight",
        }
        assert loaded <= names
        assert torch.equal(
            model.model.layers[str(LAYERS)].hnorm.weight,
            weights[f"model.layers.{LAYERS}.hnorm.weight"],
        )


def test_another_model_is_not_rotated(config) -> None:
    assert predictor(config, USED, model_type="deepseek_v3").model.rot is None


def test_missing_matrix_is_refused(config) -> None:
    with pytest.raises(ValueError, match=r"rot\.weight is missing"):
        predictor(config, USED).load_weights(iter(checkpoint(rot=False).items()))


def test_matrix_does_not_pass_for_a_layer(config) -> None:
    """vLLM still says that the checkpoint was quantized without the predictor."""
    with pytest.raises(ValueError, match="layer 3 weights missing from checkpoint"):
        predictor(config, USED).load_weights(iter([("rot.weight", Q)]))


@pytest.mark.parametrize("fields", [{}, {"num_nextn_predict_layers": 0}, {"without": True}])
def test_main_model_skips_the_matrix(config, fields) -> None:
    """With a predictor beside it, with none, and where the configuration knows of none."""
    without = fields.pop("without", False)
    model = main_model(config, **fields)
    if without:
        del model.config.num_nextn_predict_layers
    norm = torch.randn(H, generator=GENERATOR)
    loaded = model.load_weights(iter([("rot.weight", Q), ("model.norm.weight", norm)]))
    assert loaded == {"model.norm.weight"}
    assert torch.equal(model.model.norm.weight, norm)
    with pytest.raises(KeyError):  # as for any other name that the model does not have
        model.load_weights(iter([("model.rot.weight", Q)]))


def layer_of(name: str, **fields: int) -> int | None:
    return deepseek_v2.get_spec_layer_idx_from_weight_name(
        SimpleNamespace(num_hidden_layers=3, **fields), name
    )


@pytest.mark.parametrize(
    ("name", "nextn", "layer"),
    [
        ("rot.weight", 1, 3),
        ("rot.weight", 2, 3),
        ("rot.weight", 0, None),
        ("rotary.weight", 1, None),
        ("rot.weight_scale", 1, None),
        ("model.rot.weight", 1, None),
        ("model.layers.2.x", 1, None),
        ("model.layers.3.x", 1, 3),
        ("model.layers.4.x", 1, None),
        ("model.layers.4.x", 2, 4),
        ("model.layers.31.x", 1, None),
        ("lm_head.weight", 1, None),
    ],
)
def test_layer_of_a_name(name: str, nextn: int, layer: int | None) -> None:
    assert layer_of(name, num_nextn_predict_layers=nextn) == layer
    assert layer_of("rot.weight") is None
    copied = deepseek_mtp.get_spec_layer_idx_from_weight_name
    assert copied is deepseek_v2.get_spec_layer_idx_from_weight_name


@pytest.mark.parametrize(
    ("name", "rewritten"),
    [
        ("rot.weight", "model.rot.weight"),
        ("model.layers.3.embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.layers.3.enorm.weight", "model.layers.3.enorm.weight"),
        ("model.layers.3.hnorm.weight", "model.layers.3.hnorm.weight"),
        ("model.layers.3.eh_proj.weight", "model.layers.3.eh_proj.weight"),
        ("model.layers.3.shared_head.head.weight", "model.layers.3.shared_head.head.weight"),
        ("model.layers.3.self_attn.rot.weight", "model.layers.3.mtp_block.self_attn.rot.weight"),
        ("model.layers.3.mlp.gate.weight", "model.layers.3.mtp_block.mlp.gate.weight"),
    ],
)
def test_rewritten_names(name: str, rewritten: str) -> None:
    assert deepseek_mtp.DeepSeekMTP._rewrite_spec_layer_name(None, 3, name) == rewritten
