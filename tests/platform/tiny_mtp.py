"""A tiny Qwen3-Next with a layer for multi-token prediction that is often right about it.

As in `tiny_drafts`, the model mostly names the successor of its last token and is led astray by its
layers; the draft sees only the embedding of that token, and names its successor.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_drafts import HIDDEN, cycle
from tiny_models import save_model


def save(folder: Path, astray: float = 3.5) -> Path:
    """Write the model, with a tokenizer; `astray` scales what its layers add to the stream."""
    save_model(folder, "qwen3_next")
    file, config_file = folder / "model.safetensors", folder / "config.json"
    config = json.loads(config_file.read_text("utf-8"))
    weights = load_file(file)
    weights["model.embed_tokens.weight"], weights["lm_head.weight"] = cycle(config["vocab_size"])
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weights[name] = astray * weight
    last = f"model.layers.{config['num_hidden_layers'] - 1}."  # it has full attention
    for name in [name for name in weights if name.startswith(last)]:
        weight = weights[name].clone()
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        weights[name.replace(last, "mtp.layers.0.")] = weight
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        weights[f"mtp.{name}.weight"] = torch.zeros(HIDDEN)  # Qwen3-Next's norms add 1
    eye = torch.eye(HIDDEN)
    weights["mtp.fc.weight"] = torch.cat([eye, torch.zeros_like(eye)], dim=1)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, file)
    config["num_nextn_predict_layers"] = 1
    config_file.write_text(json.dumps(config, indent=1), "utf-8")
    return folder
