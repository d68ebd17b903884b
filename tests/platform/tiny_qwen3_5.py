"""A tiny Qwen3.5 without pictures: a dense Qwen3-Next whose projections are taken apart.

transformers does not have Qwen3.5 yet; the Qwen3-Next that it is made from computes the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model

_LAYERS = 4
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "num_position_embeddings": 16,
}


def save(folder: Path, same: Path) -> Path:
    """Write the model, with a tokenizer, and into the folder `same` what it is made from."""
    save_model(same, "qwen3_next", num_hidden_layers=_LAYERS, mlp_only_layers=[*range(_LAYERS)])
    config = json.loads((same / "config.json").read_text("utf-8"))
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(same / "model.safetensors").items():
        parts = _apart(name, weight, config) if "in_proj_" in name else {name: weight}
        for part, values in parts.items():
            weights[part.replace("model.", "model.language_model.", 1)] = values.contiguous()
    folder.mkdir(exist_ok=True)
    for file in same.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    save_file(weights, folder / "model.safetensors")
    rotation = {
        "rope_type": "default",
        "rope_theta": config.pop("rope_theta"),
        "partial_rotary_factor": config["partial_rotary_factor"],
        "mrope_section": [2, 1, 1],  # a quarter of a head of 32 is rotated, in pairs
        "mrope_interleaved": True,
    }
    for name in ("architectures", "rope_scaling"):
        config.pop(name, None)
    whole = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {**config, "model_type": "qwen3_5_text", "rope_parameters": rotation},
        "vision_config": {**_VISION, "out_hidden_size": config["hidden_size"]},
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(whole, indent=1), "utf-8")
    return folder


def _apart(name: str, weight: torch.Tensor, config: dict[str, int]) -> dict[str, torch.Tensor]:
    """Return the parts of a joint projection, which has them for each head of keys in turn."""
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    share = config["linear_num_value_heads"] // heads
    value = share * config["linear_value_head_dim"]
    joint = name.endswith("in_proj_qkvz.weight")
    sizes = [key, key, value, value] if joint else [share, share]
    split = weight.unflatten(0, (heads, -1)).split(sizes, dim=1)
    parts = [part.flatten(0, 1) for part in split]
    at = name[: name.index("in_proj_")] + "in_proj_"
    if joint:
        return {f"{at}qkv.weight": torch.cat(parts[:3]), f"{at}z.weight": parts[3]}
    return {f"{at}b.weight": parts[0], f"{at}a.weight": parts[1]}
