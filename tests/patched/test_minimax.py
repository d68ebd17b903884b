"""P7.3 and P7.4: Eagle-3 drafts for MiniMax-M2."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.config import SpeculativeConfig
from vllm.model_executor.models import registry
from vllm.model_executor.models.registry import ModelRegistry

BEFORE = [
    "llama",
    "qwen",
    "minicpm",
    "gpt_oss",
    "hunyuan_vl",
    "hunyuan_v1_dense",
    "afmoe",
    "nemotron_h",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "kimi_k25",
]
METHODS = ("eagle3", "extract_hidden_states")


def verify(method: str, model_type: str) -> SimpleNamespace:
    """Run vLLM's own validator on a stand-in."""
    text = SimpleNamespace(model_type=model_type)
    stub = SimpleNamespace(
        tensor_parallel_size=None,
        num_speculative_tokens=2,
        draft_model_config=None,
        method=method,
        target_model_config=SimpleNamespace(hf_text_config=text),
        verify_equal_vocab_size_if_draft_model=lambda: None,
    )
    validator = SpeculativeConfig.__dict__["_verify_args"]
    assert getattr(validator, "wrapped", validator)(stub) is stub
    return stub


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model_type", [*BEFORE, "minimax_m2"])
def test_allowed(method: str, model_type: str) -> None:
    verify(method, model_type)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model_type", ["minimax_text_01", "minimax", "minimax_m1", "mixtral"])
def test_refused_with_the_list_in_the_message(method: str, model_type: str) -> None:
    with pytest.raises(ValueError, match="is only supported for") as caught:
        verify(method, model_type)
    assert str([*BEFORE, "minimax_m2"]) in str(caught.value)


def test_other_methods_do_not_ask() -> None:
    verify("ngram", "minimax_text_01")


def test_draft_architecture_is_the_shared_llama_one() -> None:
    model = ModelRegistry._try_load_model_cls("Eagle3MiniMaxM2ForCausalLM")
    assert model is not None
    assert model.__name__ == "Eagle3LlamaForCausalLM"
    assert model is ModelRegistry._try_load_model_cls("Eagle3Qwen3vlForCausalLM")
    assert "Eagle3MiniMaxM2ForCausalLM" in ModelRegistry.get_supported_archs()
    models = registry._SPECULATIVE_DECODING_MODELS
    assert models["Eagle3MiniMaxM2ForCausalLM"] == models["Eagle3LlamaForCausalLM"]


def test_architecture_is_the_one_that_vllm_derives() -> None:
    from transformers import LlamaConfig
    from vllm.transformers_utils.configs.eagle import EAGLEConfig

    draft = LlamaConfig(architectures=["MiniMaxM2ForCausalLM"])
    (name,) = EAGLEConfig(model=draft, method="eagle3").architectures
    assert name == "Eagle3MiniMaxM2ForCausalLM"
