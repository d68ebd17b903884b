"""Tiny MiniMax-M2 checkpoints, and the model in plain torch: transformers does not have it yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny_models import save_tokenizer

HIDDEN, WIDE, HEADS, DIM, EXPERTS, LAYERS, ROTARY = 128, 128, 8, 32, 4, 3, 16
BASE, EPS, BLOCK = 10000.0, 1e-6, 128
_CONFIGURATION = """\
from transformers import PretrainedConfig


class MiniMaxM2Config(PretrainedConfig):
    model_type = "minimax_m2"
"""


def save(folder: Path, kv_heads: int = 2, per_token: int = 2, fp8: bool = False) -> Path:
    """Write a random model and a tokenizer, and return `folder`.

    `per_token` experts work on each token. The weights are float32, or with `fp8` the large ones
    float8 in blocks of 128 by 128 with a scale each, as MiniMax publishes them; what the scales
    make of them are the numbers that `load` returns. vLLM must trust the folder's code.
    """
    tokenizer = save_tokenizer(folder, markers=["<think>", "</think>"])
    config = {
        "model_type": "minimax_m2",
        "architectures": ["MiniMaxM2ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"},
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": DIM,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": per_token,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "rms_norm_eps": EPS,
        "rope_theta": BASE,
        "rotary_dim": ROTARY,
        "max_position_embeddings": 1024,
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "num_mtp_modules": 0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16" if fp8 else "float32",
        "attn_type_list": [1] * LAYERS,
    }
    weights = _random(int(config["vocab_size"]), kv_heads)
    if fp8:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "float8_e4m3fn",
            "weight_block_size": [BLOCK, BLOCK],
        }
        weights = dict(_quantized(weights))
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    (folder / "configuration_minimax_m2.py").write_text(_CONFIGURATION, "utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


def _random(vocabulary: int, kv_heads: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)

    def draw(*shape: int, around: float = 0.0) -> torch.Tensor:
        return around + 0.08 * torch.randn(*shape, generator=chance)

    weights = {
        "model.embed_tokens.weight": draw(vocabulary, HIDDEN),
        "lm_head.weight": draw(vocabulary, HIDDEN),
        "model.norm.weight": draw(HIDDEN, around=1),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{name}.weight"] = draw(HIDDEN, around=1)
        for name, heads in {"q": HEADS, "k": kv_heads, "v": kv_heads}.items():
            weights[f"{at}.self_attn.{name}_proj.weight"] = draw(heads * DIM, HIDDEN)
            if name != "v":
                weights[f"{at}.self_attn.{name}_norm.weight"] = draw(heads * DIM, around=1)
        weights[f"{at}.self_attn.o_proj.weight"] = draw(HIDDEN, HEADS * DIM)
        at += ".block_sparse_moe"
        weights[f"{at}.gate.weight"] = draw(EXPERTS, HIDDEN)
        weights[f"{at}.e_score_correction_bias"] = draw(EXPERTS)
        for expert in range(EXPERTS):
            for name, shape in {
                "w1": (WIDE, HIDDEN),
                "w2": (HIDDEN, WIDE),
                "w3": (WIDE, HIDDEN),
            }.items():
                weights[f"{at}.experts.{expert}.{name}.weight"] = draw(*shape)
    return weights


def _quantized(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in weights.items():
        if "_proj" not in name and ".experts." not in name:
            yield name, weight if "gate" in name or "bias" in name else weight.bfloat16()
            continue
        rows, columns = (-(-size // BLOCK) for size in weight.shape)
        scales = torch.empty(rows, columns)
        small = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        for row in range(rows):
            for column in range(columns):
                at = tuple(slice(i * BLOCK, (i + 1) * BLOCK) for i in (row, column))
                scales[row, column] = weight[at].abs().max() / 448
                small[at] = (weight[at] / scales[row, column]).to(small.dtype)
        yield name, small
        yield f"{name}_scale_inv", scales


def load(folder: Path) -> MiniMax:
    """Return the model of a folder."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        scales, small = weights.pop(name), weights[name.removesuffix("_scale_inv")]
        factors = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        whole = small.float() * factors[: small.shape[0], : small.shape[1]]
        weights[name.removesuffix("_scale_inv")] = whole.bfloat16()
    return MiniMax(
        {name: weight.float() for name, weight in weights.items()}, config["num_experts_per_tok"]
    )


class MiniMax:
    """MiniMax-M2 by its definition, in float32, without a cache."""

    def __init__(self, weights: dict[str, torch.Tensor], per_token: int) -> None:
        self.weights, self.per_token = weights, per_token

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Return the most likely tokens after a prompt."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        """Return logits [1, T, vocabulary] for ids [1, T], as transformers' models do."""
        x = self.weights["model.embed_tokens.weight"][ids[0]]
        for layer in range(LAYERS):
            at = f"model.layers.{layer}"
            x = x + self._attend(f"{at}.self_attn", self._norm(f"{at}.input_layernorm", x))
            x = x + self._mix(
                f"{at}.block_sparse_moe", self._norm(f"{at}.post_attention_layernorm", x)
            )
        logits = F.linear(self._norm("model.norm", x), self.weights["lm_head.weight"])
        return SimpleNamespace(logits=logits[None])

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weights[f"{name}.weight"]
        )

    def _attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (F.linear(x, self.weights[f"{at}.{name}_proj.weight"]) for name in "qkv")
        q, k = self._norm(f"{at}.q_norm", q), self._norm(f"{at}.k_norm", k)
        q, k, v = (y.unflatten(1, (-1, DIM)).transpose(0, 1) for y in (q, k, v))
        out = F.scaled_dot_product_attention(
            _rotate(q), _rotate(k), v, is_causal=True, enable_gqa=True
        )
        return F.linear(out.transpose(0, 1).flatten(1), self.weights[f"{at}.o_proj.weight"])

    def _mix(self, at: str, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x, self.weights[f"{at}.gate.weight"]).sigmoid()
        biased = scores + self.weights[f"{at}.e_score_correction_bias"]
        chosen = torch.zeros_like(scores).scatter(1, biased.topk(self.per_token).indices, 1.0)
        shares = scores * chosen / (scores * chosen).sum(1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            w1, w2, w3 = (
                self.weights[f"{at}.experts.{expert}.{name}.weight"] for name in ("w1", "w2", "w3")
            )
            part = F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)
            out += shares[:, expert, None] * part
        return out


def _rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotate the first dimensions of [heads, T, DIM] by their positions."""
    half = ROTARY // 2
    angles = torch.arange(x.shape[1])[:, None] * BASE ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = x[..., :half], x[..., half:ROTARY], x[..., ROTARY:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
