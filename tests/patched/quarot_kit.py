"""A tiny Llama and its Eagle-3 drafts, and the same Llama as QuaRot leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from model_kit import LLAMA
from safetensors.torch import save_file

H, V, DRAFT_V, LAYERS = LLAMA["hidden_size"], LLAMA["vocab_size"], 16, 6
AUX = (2, 3, 6)
#: What the quantization description of a rotated target says; the path is below its folder.
DESCRIPTION = {
    "optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}}
}
Weights = dict[str, torch.Tensor]


def rotation() -> torch.Tensor:
    """Q, orthogonal, [H, H]."""
    noise = torch.randn(H, H, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(noise)[0].float().contiguous()


class Maker:
    """Makes tensors of a checkpoint."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator) * 0.2

    def norm(self, size: int = H) -> torch.Tensor:
        return 1 + self.matrix(size)

    def layer(self, prefix: str, width: int = H) -> Weights:
        heads, kv = LLAMA["num_attention_heads"] * 8, LLAMA["num_key_value_heads"] * 8
        wide = LLAMA["intermediate_size"]
        shapes = {
            "self_attn.q_proj": (heads, width),
            "self_attn.k_proj": (kv, width),
            "self_attn.v_proj": (kv, width),
            "self_attn.o_proj": (H, heads),
            "mlp.gate_proj": (wide, H),
            "mlp.up_proj": (wide, H),
            "mlp.down_proj": (H, wide),
        }
        weights = {f"{prefix}{name}.weight": self.matrix(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = self.norm()
        return weights


def target_weights() -> Weights:
    make = Maker(1)
    weights = {"model.embed_tokens.weight": make.matrix(V, H)}
    for n in range(LAYERS):
        weights |= make.layer(f"model.layers.{n}.")
    return weights | {"model.norm.weight": make.norm(), "lm_head.weight": make.matrix(V, H)}


def rotated(weights: Weights, q: torch.Tensor) -> Weights:
    """Fold the norms into what follows them, then rotate the residual stream."""
    result = dict(weights)
    for name, weight in weights.items():
        norm = None
        if ".self_attn." in name:
            norm = name.partition("self_attn")[0] + "input_layernorm.weight"
        elif ".mlp." in name:
            norm = name.partition("mlp")[0] + "post_attention_layernorm.weight"
        elif name == "lm_head.weight":
            norm = "model.norm.weight"
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            result[name] = q.t() @ weight
        elif norm:
            result[name] = weight * weights[norm] @ q
        elif name.endswith("embed_tokens.weight"):
            result[name] = weight @ q
        else:
            result[name] = torch.ones_like(weight)
    return result


def draft_weights(
    *, embedding: bool = True, norm_before_fc: bool = False, mask: bool = False, head: bool = True
) -> Weights:
    """The checkpoint of an Eagle-3 draft in the names that such checkpoints have."""
    make = Maker(2)
    weights = make.layer("midlayer.", 2 * H) | {
        "fc.weight": make.matrix(H, 3 * H),
        "midlayer.hidden_norm.weight": make.norm(),
        "norm.weight": make.norm(),
        "lm_head.weight": make.matrix(DRAFT_V, H),
        "d2t": torch.arange(DRAFT_V),
        "t2d": torch.zeros(V, dtype=torch.bool),
        "embed_tokens.weight": make.matrix(V, H),
        "input_norm.weight": make.norm(3 * H),
        "mask_hidden": make.matrix(1, 1, 3 * H),
    }
    unwanted = {
        "embed_tokens.weight": not embedding,
        "input_norm.weight": not norm_before_fc,
        "mask_hidden": not mask,
        "lm_head.weight": not head,
    }
    return {name: w for name, w in weights.items() if not unwanted.get(name)}


def save_rotated_target(folder: Path, q: torch.Tensor) -> None:
    """Write the rotated checkpoint, in two files with an index, and the rotation beside it."""
    weights = rotated(target_weights(), q)
    names = sorted(weights)
    parts = {"part-1.safetensors": names[::2], "part-2.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({n: weights[n].contiguous() for n in some}, folder / file)
    index = {"weight_map": {n: file for file, some in parts.items() for n in some}}
    (folder / "quant_model_weights.safetensors.index.json").write_text(json.dumps(index))
    (folder / "optional").mkdir()
    save_file({"global_rotation": q.double()}, folder / "optional/quarot.safetensors")


def quantization(description: object) -> SimpleNamespace:
    """What the Ascend plugin's quantization has, as far as it is asked."""
    return SimpleNamespace(
        quant_description=description,
        packed_modules_mapping={},
        apply_vllm_mapper=lambda mapper: None,
        maybe_update_config=lambda name: None,
    )
