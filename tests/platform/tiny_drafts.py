"""A tiny Llama, an EAGLE-3 draft that is often right about it, and the Llama as QuaRot leaves it.

The target mostly names the successor of its last token, in a fixed cycle of all tokens, and is now
and then led astray by its layers. The draft attends to the last token only and names its successor.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_tokenizer

HIDDEN, WIDE, HEADS, DIM, LAYERS = 128, 256, 4, 32, 4
#: The layers of the target that the draft sees the input of.
_SEEN = [1, 2, 3]
#: A common component of all embeddings, by which a token may be attended to whatever it is.
_CONSTANT = 2.0
_ROTATION = "optional/quarot.safetensors"
Weights = dict[str, torch.Tensor]


def save_target(folder: Path, astray: float = 0.1) -> Path:
    """Write the target in float32, and a tokenizer; `astray` is the size of its layers' weights."""
    tokenizer = save_tokenizer(folder)
    vocabulary = -(-len(tokenizer) // 64) * 64
    chance = torch.Generator().manual_seed(5)
    embedding, head = cycle(vocabulary, chance)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in _shapes(HIDDEN).items():
            weights[f"{at}{name}.weight"] = astray * torch.randn(shape, generator=chance)
        weights |= _norms(at)
    _write(folder, "LlamaForCausalLM", weights, vocabulary, LAYERS)
    return folder


def cycle(
    vocabulary: int, chance: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an embedding, and a head that finds the successor: 7 tokens on in the vocabulary.

    Both are [vocabulary, HIDDEN].
    """
    chance = chance or torch.Generator().manual_seed(5)
    embedding = torch.randn(vocabulary, HIDDEN, generator=chance)
    embedding = embedding / embedding.norm(dim=1, keepdim=True) * HIDDEN**0.5
    embedding[:, 0] = _CONSTANT
    head = embedding.roll(7, dims=0)
    head[:, 0] = 0
    return embedding.contiguous(), head / HIDDEN


def save_draft(folder: Path, target: Path) -> Path:
    """Write an EAGLE-3 draft of a target; it takes the target's embedding, and has its own head."""
    chance = torch.Generator().manual_seed(6)
    head = load_file(target / "model.safetensors")["lm_head.weight"]
    at = "layers.0."
    weights = {
        f"{at}{name}.weight": 0.02 * torch.randn(shape, generator=chance)
        for name, shape in _shapes(2 * HIDDEN).items()
    }
    # Every token has the same query and key, so that only distance counts: it attends to itself.
    sharp = torch.zeros(HEADS * DIM, 2 * HIDDEN)
    sharp[:, 0] = 8 / _CONSTANT
    weights[f"{at}self_attn.q_proj.weight"] = weights[f"{at}self_attn.k_proj.weight"] = sharp
    # It puts the token's embedding in the place of the state that it started from.
    eye = torch.eye(HIDDEN)
    weights[f"{at}self_attn.v_proj.weight"] = torch.cat([eye, -eye], dim=1)
    weights[f"{at}self_attn.o_proj.weight"] = eye
    weights |= _norms(at) | {f"{at}hidden_norm.weight": torch.ones(HIDDEN)}
    weights["fc.weight"] = 0.02 * torch.randn(HIDDEN, 3 * HIDDEN, generator=chance)
    weights |= {"norm.weight": torch.ones(HIDDEN), "lm_head.weight": head}
    folder.mkdir(exist_ok=True)
    for file in target.glob("*token*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    _write(
        folder,
        "LlamaForCausalLM",
        weights,
        len(head),
        1,
        rope_theta=10.0,
        eagle_aux_hidden_state_layer_ids=_SEEN,
    )
    return folder


def save_rotated(folder: Path, target: Path) -> Path:
    """Write the target with a rotated residual stream, and the rotation where QuaRot leaves it."""
    chance = torch.Generator().manual_seed(7)
    noise = torch.randn(HIDDEN, HIDDEN, generator=chance, dtype=torch.float64)
    q = torch.linalg.qr(noise)[0]
    weights = {}
    for name, weight in load_file(target / "model.safetensors").items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight = (q.T @ weight.double()).float()
        elif weight.dim() == 2:
            weight = (weight.double() @ q).float()
        weights[name] = weight.contiguous()  # the norms are ones: nothing is to be folded
    (folder / _ROTATION).parent.mkdir(parents=True)
    save_file({"global_rotation": q.float().contiguous()}, folder / _ROTATION)
    description = {"optional": {"quarot": {"rotation_map": {"global_rotation": _ROTATION}}}}
    (folder / "quant_model_description.json").write_text(json.dumps(description), "utf-8")
    for file in target.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    save_file(weights, folder / "model.safetensors")
    return folder


def _shapes(width: int) -> dict[str, tuple[int, int]]:
    return {
        "self_attn.q_proj": (HEADS * DIM, width),
        "self_attn.k_proj": (HEADS * DIM, width),
        "self_attn.v_proj": (HEADS * DIM, width),
        "self_attn.o_proj": (HIDDEN, HEADS * DIM),
        "mlp.gate_proj": (WIDE, HIDDEN),
        "mlp.up_proj": (WIDE, HIDDEN),
        "mlp.down_proj": (HIDDEN, WIDE),
    }


def _norms(at: str) -> Weights:
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{at}{name}.weight": torch.ones(HIDDEN) for name in names}


def _write(
    folder: Path,
    architecture: str,
    weights: Weights,
    vocabulary: int,
    layers: int,
    **more: object,
) -> None:
    config = {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": DIM,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "dtype": "float32",
        **more,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    save_file(
        {name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors"
    )
