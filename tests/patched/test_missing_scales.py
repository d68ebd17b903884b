"""W23: a scale that the model does not have is skipped, and is no loaded parameter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from vllm.model_executor.models import (
    AXK1,
    deepseek_mtp,
    glm4_moe_lite,
    glm4_moe_lite_mtp,
    openpangu,
)

#: Each loader, and the name of a parameter that it loads.
LOADERS = {
    AXK1.AXK1ForCausalLM: "model.norm.weight",
    deepseek_mtp.DeepSeekMTP: "model.layers.2.enorm.weight",
    glm4_moe_lite.Glm4MoeLiteModel: "norm.weight",
    glm4_moe_lite_mtp.Glm4MoeLiteMTP: "model.layers.2.enorm.weight",
    openpangu.OpenPanguModel: "norm.weight",
}
MISSING = ("self_attn.k_scale", "self_attn.fa_k.scale", "self_attn.kv_scale")


def bare(cls: type[nn.Module], parameter: str) -> nn.Module:
    """The model without its layers, but for one parameter."""
    model = cls.__new__(cls)
    nn.Module.__init__(model)
    model.config = SimpleNamespace(
        num_hidden_layers=2,
        num_nextn_predict_layers=1,
        n_routed_experts=1,
        n_shared_experts=1,
        tie_word_embeddings=False,
    )
    model.num_redundant_experts = 0
    model.use_mha = False
    owner = model
    *modules, name = parameter.split(".")
    for module in modules:
        owner.add_module(module, nn.Module())
        owner = getattr(owner, module)
    owner.register_parameter(name, nn.Parameter(torch.zeros(3)))
    if "model" in modules:
        model.model.rot, model.model.num_mtp_layers, model.model.mtp_start_layer_idx = None, 1, 2
    return model


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("cls", LOADERS)
def test_missing_scale_is_skipped(cls: type[nn.Module], missing: str) -> None:
    parameter = LOADERS[cls]
    model = bare(cls, parameter)
    # Names of a layer that this loader is for: predictors skip those of the main model.
    layer = 2 if "enorm" in parameter else 0
    prefix = "model." if parameter.startswith("model.") else ""
    weights = [
        (f"{prefix}layers.{layer}.{missing}", torch.ones(1)),
        (parameter, torch.ones(3)),
    ]
    assert model.load_weights(iter(weights)) == {parameter}
    assert dict(model.named_parameters())[parameter].tolist() == [1, 1, 1]
