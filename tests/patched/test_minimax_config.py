"""P7.1 and P7.2: what ModelConfig makes of MiniMax-M2, with a platform named npu and without."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from platform_kit import on_platform
from vllm.config import ModelConfig
from vllm.config import model as config_model

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
VARIABLE = "HCCL_OP_EXPANSION_MODE"


def bare(model_type: str, checkpoint: dict | None = None, **fields: object) -> ModelConfig:
    """A configuration with no more than the two methods look at."""
    config = ModelConfig.__new__(ModelConfig)
    arch = SimpleNamespace(
        model_type=model_type, quantization_config=checkpoint and dict(checkpoint)
    )
    for name, value in {"model_arch_config": arch, "quantization": None, **fields}.items():
        object.__setattr__(config, name, value)
    object.__setattr__(config, "allow_deprecated_quantization", False)
    return config


def verified(kind: str, config: ModelConfig) -> str | None:
    with on_platform(kind, config_model) as platform:
        config._verify_quantization()
        assert "verify_quantization" not in vars(platform)  # nothing is left behind on it
    return config.quantization


@pytest.mark.parametrize("asked", [None, "fp8"])
def test_fp8_checkpoint_of_minimax_becomes_bf16_on_npu(asked: str | None) -> None:
    config = bare("minimax_m2", FP8, quantization=asked)
    assert verified("npu", config) is None
    assert config.model_arch_config.quantization_config == FP8


@pytest.mark.parametrize(
    ("model_type", "checkpoint", "asked", "message"),
    [
        ("deepseek_v3", FP8, None, "fp8 quantization is currently not supported in npu"),
        ("deepseek_v3", FP8, "fp8", "fp8 quantization is currently not supported in npu"),
        ("minimax_m2", None, "fp8", "fp8 quantization is currently not supported in npu"),
        ("minimax_m2", AWQ, None, "awq quantization is currently not supported in npu"),
        ("minimax_text_01", FP8, None, "fp8 quantization is currently not supported in npu"),
        ("minimax_m2", FP8, "awq", "does not match the quantization method specified"),
        ("minimax_m2", FP8, "ascend", "does not match the quantization method specified"),
    ],
)
def test_everything_else_is_refused_as_before(model_type, checkpoint, asked, message) -> None:
    with pytest.raises(ValueError) as caught:
        verified("npu", bare(model_type, checkpoint, quantization=asked))
    assert message in " ".join(str(caught.value).split())


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("checkpoint", "asked", "result"),
    [(FP8, None, "fp8"), (FP8, "fp8", "fp8"), (None, "fp8", "fp8"), (None, None, None)],
)
def test_other_platforms_keep_the_method(kind, checkpoint, asked, result) -> None:
    assert verified(kind, bare("minimax_m2", checkpoint, quantization=asked)) == result


def test_quantization_that_npus_have_is_kept() -> None:
    checkpoint = {"quant_method": "compressed-tensors", "config_groups": {}}
    assert verified("npu", bare("minimax_m2", checkpoint)) == "compressed-tensors"


@pytest.fixture
def expansion(monkeypatch: pytest.MonkeyPatch):
    """`expansion(kind, value, model_type, eager)`: the variable after the check for graphs."""

    def run(kind: str, value: str | None, model_type: str, eager: bool) -> str | None:
        monkeypatch.delenv(VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)
        config = bare(model_type, enforce_eager=eager, is_encoder_decoder=False)
        with on_platform(kind, config_model):
            config._verify_cuda_graph()
        after = os.environ.get(VARIABLE)
        assert config.enforce_eager is eager
        return after

    return run


@pytest.mark.parametrize(
    ("value", "model_type", "eager", "after"),
    [
        (None, "minimax_m2", False, "AIV"),
        ("AIV", "minimax_m2", False, "AIV"),
        ("AI_CPU", "minimax_m2", False, "AI_CPU"),
        (None, "minimax_m2", True, None),
        ("AIV", "minimax_m2", True, "AIV"),
        ("AI_CPU", "minimax_m2", True, "AI_CPU"),
        (None, "qwen3_moe", False, None),
        ("AI_CPU", "qwen3_moe", False, "AI_CPU"),
        (None, "qwen3_moe", True, None),
    ],
)
def test_hccl_expansion_on_npu(expansion, value, model_type, eager, after) -> None:
    assert expansion("npu", value, model_type, eager) == after


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("value", [None, "AIV", "AI_CPU"])
def test_hccl_expansion_elsewhere(expansion, kind, value) -> None:
    assert expansion(kind, value, "minimax_m2", False) == value


def test_the_check_for_rocm_still_runs() -> None:
    """It follows the inserted statement."""
    config = bare("minimax_m2", enforce_eager=False, is_encoder_decoder=True)
    with on_platform("cuda", config_model) as platform:
        platform.is_rocm = lambda: True
        config._verify_cuda_graph()
    assert config.enforce_eager is True
