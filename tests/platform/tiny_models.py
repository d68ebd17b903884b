"""Tiny random models and byte-level tokenizers, made on the spot: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

#: What a tokenizer is trained on: every byte is a token, and so are these words.
_CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world how are you today",
    "get current weather in San Francisco Tokyo city state unit Celsius",
    "function name parameter arguments tool call result",
    "This is a reasoning section. This is the rest. content final",
    "0123456789 + - * / = ( ) { } [ ]",
]
_CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

#: The families that `save_model` knows: config, model, and what differs from the common sizes.
FAMILIES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 16}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        },
    ),
    "qwen3_next": (
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
        {
            "num_hidden_layers": 4,
            "num_experts": 4,
            "num_experts_per_tok": 4,  # rounding must not route a token elsewhere
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 64,  # a state is as large as the keys of 128 tokens
        },
    ),
}


def save_tokenizer(
    folder: Path,
    markers: Sequence[str] = (),
    eos: str = "<|endoftext|>",
    special: Sequence[str] = (),
    **settings: Any,
) -> PreTrainedTokenizerFast:
    """Write a byte-level BPE tokenizer into `folder` and return it.

    `markers` are tokens of their own that stay in decoded text, as models have them for thinking
    and tool calls; `special` ones and `eos` do not. Other settings go to the tokenizer's class.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first = list(dict.fromkeys([eos, *special]))
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 20, trainer)
    marks = [AddedToken(mark, special=False, normalized=False) for mark in markers]
    tokenizer.add_tokens([mark for mark in marks if mark.content not in first])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, **settings)
    fast.chat_template = _CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder that `save_tokenizer` filled."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def save_model(folder: Path, family: str = "qwen3", seed: int = 0, **changed: Any) -> Path:
    """Write a random float32 model of one of `FAMILIES`, with a tokenizer, and return `folder`.

    The weights are large enough for greedy tokens to vary. `changed` are values of the config.
    """
    config_class, model_class, own = FAMILIES[family]
    tokenizer = save_tokenizer(folder, markers=["<think>", "</think>"])
    config = config_class(
        **{
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
            "tie_word_embeddings": False,
            **own,
            **changed,
        }
    )
    torch.manual_seed(seed)
    model = model_class(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.08)
    model.save_pretrained(folder)
    return folder
