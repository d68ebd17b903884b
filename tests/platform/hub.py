"""Fills a folder like $HF_HOME/hub with stand-ins for the models that vLLM's tests name.

usage: python tests/platform/hub.py FOLDER

FOLDER is to be $HF_HOME. With HF_HUB_OFFLINE=1 the tests then find a config with the sizes of the
named model, and a small byte-level tokenizer with its marker tokens. Weights there are none, but
for a few models that are made small enough to run. hub.toml lists the models.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
)

sys.path.insert(0, str(Path(__file__).parent))

from tiny_models import save_tokenizer

MODELS = Path(__file__).with_name("hub.toml")
_COMMIT = "0" * 39 + "1"


def fill(home: Path) -> None:
    """Write all stand-ins into `home`/hub."""
    for model in tomllib.loads(MODELS.read_text("utf-8"))["model"]:
        _save(snapshot(home, model["name"]), **model)
    # Qwen's own classes need torchvision; its test asks for any model that takes images.
    for name in ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-VL-3B-Instruct"):
        _add_llava(snapshot(home, name))


def _save(
    folder: Path,
    name: str,
    eos: str | None = None,
    markers: Sequence[str] = (),
    family: str | None = None,
    weights: bool = False,
    sizes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a model's tokenizer, config and weights, as far as it is to have them."""
    tokenizer = save_tokenizer(folder, markers, eos) if eos else None
    if family is None:
        return
    heads = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    config = getattr(transformers, f"{family}Config")(
        **{"architectures": [heads], "dtype": "float16" if family == "OPT" else "bfloat16", **sizes}
    )
    if not weights:
        config.save_pretrained(folder)
        return
    assert tokenizer is not None
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    getattr(transformers, heads)(config).to(config.dtype).save_pretrained(folder)


def snapshot(home: Path, name: str) -> Path:
    """Return the folder of a model's files, made as huggingface_hub lays it out."""
    folder = home / "hub" / ("models--" + name.replace("/", "--"))
    for part in ("refs", f"snapshots/{_COMMIT}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "refs/main").write_text(_COMMIT)
    return folder / "snapshots" / _COMMIT


def _add_llava(folder: Path) -> None:
    """Write a config and a processor of a model that sees; its tokenizer is there already."""

    text = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=32064,
        max_position_embeddings=4096,
        dtype="float16",
    )
    vision = CLIPVisionConfig(
        hidden_size=1024,
        image_size=336,
        intermediate_size=4096,
        num_attention_heads=16,
        num_hidden_layers=24,
        patch_size=14,
        projection_dim=768,
    )
    image_token = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<image>")
    LlavaConfig(
        architectures=["LlavaForConditionalGeneration"],
        image_token_index=image_token,
        text_config=text,
        vision_config=vision,
        dtype="float16",
    ).save_pretrained(folder)
    CLIPImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    ).save_pretrained(folder)
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "image_token": "<image>",
        "num_additional_image_tokens": 1,
    }
    (folder / "processor_config.json").write_text(json.dumps(processor))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    fill(Path(sys.argv[1]))
