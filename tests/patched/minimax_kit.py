"""A tiny MiniMax-M2 of vLLM's real classes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from model_kit import config_with, other_model
from torch import nn
from transformers import PretrainedConfig
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.minimax_m2 import MiniMaxM2ForCausalLM

LAYERS, EXPERTS, H, WIDE, V = 4, 2, 32, 48, 40
SIZES = {"q_proj": (32, H), "k_proj": (16, H), "v_proj": (16, H), "o_proj": (H, 32)}


def hf_config(**fields: object) -> PretrainedConfig:
    defaults = {
        "model_type": "minimax_m2",
        "architectures": ["MiniMaxM2ForCausalLM"],
        "hidden_size": H,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rotary_dim": 4,
        "max_position_embeddings": 64,
        "vocab_size": V,
        "num_mtp_modules": 0,
    }
    return PretrainedConfig(**{**defaults, **fields})


def built(config: VllmConfig, **fields: object) -> MiniMaxM2ForCausalLM:
    whole = config_with(other_model(config, hf_config(**fields)), quant_config=None)
    model = initialize_model(whole, model_class=MiniMaxM2ForCausalLM)
    for parameter in model.parameters():
        parameter.data.zero_()  # what is not loaded is not left to chance
    return model


def matrices() -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the weights that are fp8 in published checkpoints."""
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, shape in SIZES.items():
            yield f"{prefix}self_attn.{name}.weight", shape
        for expert in range(EXPERTS):
            for name, shape in {"w1": (WIDE, H), "w2": (H, WIDE), "w3": (WIDE, H)}.items():
                yield f"{prefix}block_sparse_moe.experts.{expert}.{name}.weight", shape


class PassOn(nn.Module):
    """In the place of the experts, which need kernels."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * 0.5
