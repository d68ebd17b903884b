"""A tiny model with MLA attention, as GLM-5 and DeepSeek have it, of vLLM's real classes."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from model_kit import config_with, other_model
from torch import nn
from transformers import PretrainedConfig
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP
from vllm.model_executor.models.deepseek_v2 import GlmMoeDsaForCausalLM

LAYERS, H, V = 3, 32, 40


def hf_config(**fields: object) -> PretrainedConfig:
    defaults = {
        "model_type": "glm_moe_dsa",
        "hidden_size": H,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 64,
        "vocab_size": V,
        "num_nextn_predict_layers": 1,
    }
    return PretrainedConfig(**{**defaults, **fields})


def configuration(config: VllmConfig, description: object, **fields: object) -> VllmConfig:
    """The configuration of the model and its predictor; `description` is of the quantization."""
    whole = config_with(other_model(config, hf_config(**fields)))
    target = whole.model_config
    architecture = copy.copy(target.model_arch_config)
    object.__setattr__(architecture, "is_deepseek_mla", True)
    object.__setattr__(target, "model_arch_config", architecture)
    speculative = SimpleNamespace(draft_model_config=target, target_model_config=target)
    object.__setattr__(whole, "speculative_config", speculative)
    object.__setattr__(whole, "quant_config", None)
    if description is not None:
        object.__setattr__(whole, "quant_config", Described(description))
    return whole


class Described(QuantizationConfig):
    """A quantization that has a description and quantizes nothing."""

    def __init__(self, description: object) -> None:
        super().__init__()
        self.quant_description = description

    def get_name(self) -> str:
        return "described"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict) -> Described:
        return cls(config)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> object:
        if isinstance(layer, LinearBase):
            return UnquantizedLinearMethod()
        if isinstance(layer, FusedMoE):
            return UnquantizedFusedMoEMethod(layer.moe_config)
        return None


def predictor(config: VllmConfig, description: object, **fields: object) -> DeepSeekMTP:
    return initialize_model(configuration(config, description, **fields), model_class=DeepSeekMTP)


def main_model(config: VllmConfig, **fields: object) -> GlmMoeDsaForCausalLM:
    whole = configuration(config, None, **fields)
    return initialize_model(whole, model_class=GlmMoeDsaForCausalLM)
