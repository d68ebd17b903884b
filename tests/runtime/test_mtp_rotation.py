"""When the predictor of a GLM-5 gets a rotation, and what happens if its matrix is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ascend_runtime.mtp_rotation import build, check_loaded


def config(description: object, model_type: str = "glm_moe_dsa") -> SimpleNamespace:
    text = SimpleNamespace(model_type=model_type)
    return SimpleNamespace(
        quant_config=SimpleNamespace(quant_description=description),
        speculative_config=SimpleNamespace(
            target_model_config=SimpleNamespace(hf_text_config=text)
        ),
    )


def test_a_linear_layer_in_the_default_dtype() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        rot = build(config({"is_rot_used": True}), 6)
    finally:
        torch.set_default_dtype(before)
    assert rot is not None
    assert (rot.weight.shape, rot.weight.dtype, rot.bias) == ((6, 6), torch.bfloat16, None)


@pytest.mark.parametrize("description", [{"is_rot_used": False}, {}, None, "is_rot_used"])
def test_none_without_the_word_of_the_description(description) -> None:
    assert build(config(description), 6) is None


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe", "deepseek_v32"])
def test_none_for_other_models(model_type: str) -> None:
    assert build(config({"is_rot_used": True}, model_type), 6) is None


def test_none_where_a_level_is_missing() -> None:
    whole = {"is_rot_used": True}
    levels = []
    for name in ("quant_config", "speculative_config"):
        levels.append(config(whole))
        setattr(levels[-1], name, None)
    for part in ("target_model_config", "target_model_config.hf_text_config"):
        levels.append(config(whole))
        owner = levels[-1].speculative_config
        if "." in part:
            owner.target_model_config = SimpleNamespace()
        else:
            owner.target_model_config = None
    levels.append(config(whole))
    levels[-1].quant_config = SimpleNamespace()
    assert [build(level, 6) for level in levels] == [None] * 5


def test_missing_matrix_is_an_error_only_where_one_is_wanted() -> None:
    rot = torch.nn.Linear(2, 2)
    check_loaded(None, set())
    check_loaded(rot, {"model.rot.weight", "model.embed_tokens.weight"})
    with pytest.raises(ValueError, match=r"rot\.weight is missing"):
        check_loaded(rot, {"model.layers.3.eh_proj.weight"})
