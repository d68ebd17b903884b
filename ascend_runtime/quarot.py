"""Fits Eagle-3 drafts to targets that were rotated before they were quantized (QuaRot).

The residual stream of such a target is rotated: with hidden states as rows, h' = h Q, where Q
[H, H] is orthogonal. The draft was trained on h. Its own stream stays as it is; what it takes from
the target is rotated back, by weights that are changed once, while they are loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_runtime.log import logger

_log = logger(__name__)
_IN_DESCRIPTION = ("optional", "quarot", "rotation_map", "global_rotation")
_KEY = "global_rotation"
_EMBEDDING = "embed_tokens.weight"
#: Rows that are multiplied at a time: an embedding in float32 is large.
_ROWS = 8192
Weights = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class TargetRotation:
    """The rotation of a target model, on disk: the folder of its checkpoint, and the file of Q."""

    folder: Path
    file: Path

    def matrix(self, device: torch.device) -> torch.Tensor:
        """Return Q, [H, H], float32. Raises ValueError if it cannot be read."""
        q = _read(self.file, _KEY)
        if q.dim() != 2 or q.shape[0] != q.shape[1]:
            raise ValueError(f"{self.file}: the rotation is {list(q.shape)}, not square")
        return q.to(device, torch.float32)

    def embedding(self) -> torch.Tensor:
        """Return the target's rotated input embedding, [V, H]. Raises ValueError."""
        files = {
            name: file
            for name, file in self._tensors()
            # Predictors keep a copy of it below one of their layers.
            if f".{name}".endswith(f".{_EMBEDDING}") and ".layers." not in name
        }
        if len(files) != 1:
            raise ValueError(
                f"{self.folder}: the draft needs the input embedding of its target, of which there"
                f" must be one; found {', '.join(files) or 'none'}"
            )
        ((name, file),) = files.items()
        return _read(self.folder / file, name)

    def _tensors(self) -> Iterator[tuple[str, str]]:
        """The tensors of the checkpoint: name and file."""
        indices = sorted(self.folder.glob("*.safetensors.index.json"))
        for index in indices:
            yield from json.loads(index.read_text("utf-8"))["weight_map"].items()
        if indices:
            return
        from safetensors import safe_open

        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                yield from ((name, path.name) for name in opened.keys())  # noqa: SIM118


def find_target_rotation(vllm_config: Any) -> TargetRotation | None:
    """Return where the rotation of the target lies, or None if the target was not rotated.

    It was if the description of its quantization names a file, relative to its folder. Nothing is
    read yet.
    """
    found = getattr(vllm_config.quant_config, "quant_description", None)
    for key in _IN_DESCRIPTION:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not found:
        return None
    model = vllm_config.model_config
    folder = _folder(model.model, model.revision, vllm_config.load_config.download_dir)
    return TargetRotation(folder, folder / str(found))


def adapt_draft_weights(draft: Any, weights: Weights) -> Weights:
    """Return the weights of an Eagle-3 draft, fitted to the rotation of its target.

    `draft` is the model, with its `target_rotation`; without one, `weights` itself is returned.
    `fc` [O, n * H] takes in n rotated hidden states: its columns are rotated, after the scale of
    the norm before it, if the draft has that, was folded in. `mask_hidden`, a stand-in for those
    states, is rotated. A draft without an input embedding gets that of the target, rotated back.
    Products are in float32 and rounded once. Raises ValueError for a quantized `fc`, for shapes
    that do not fit, and for files that cannot be read.
    """
    rotation: TargetRotation | None = draft.target_rotation
    return weights if rotation is None else _adapted(draft.model, rotation, weights)


def _adapted(
    model: Any, rotation: TargetRotation, weights: Weights
) -> Iterator[tuple[str, torch.Tensor]]:
    norm = "input_norm.weight" if getattr(model, "norm_before_fc", False) else ""
    q = rotation.matrix(model.embed_tokens.weight.device)
    held: dict[str, tuple[str, torch.Tensor]] = {}
    has_embedding = has_head = False
    for name, weight in weights:
        bare = name.removeprefix("model.")
        has_embedding |= "embed_tokens" in name
        has_head |= "lm_head" in name
        if bare in ("fc.weight", norm):
            held[bare] = name, weight
        elif bare.startswith("fc."):
            raise ValueError(f"{name}: a quantized fc cannot be fitted to the rotated target")
        elif "mask_hidden" in name:
            yield name, _times(name, weight, q)
        else:
            yield name, weight
    if "fc.weight" in held:
        yield from _rotated_fc(held, norm, q)
    else:
        _log.warning(
            "this draft has no fc, so it gets the rotated states of its target as they are"
        )
    if not has_embedding:
        name = f"the embedding of {rotation.folder}"
        yield _EMBEDDING, _times(name, rotation.embedding(), q.t())
    if not has_head:
        _log.warning("this draft has no lm_head of its own, and that of its target is rotated")


def _rotated_fc(
    held: Mapping[str, tuple[str, torch.Tensor]], norm: str, q: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    name, weight = held["fc.weight"]
    gamma = None
    if norm in held:
        norm_name, gamma = held[norm]
        yield norm_name, torch.ones_like(gamma)
    yield name, _times(name, weight, q, gamma)


def _times(
    name: str, x: torch.Tensor, q: torch.Tensor, gamma: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply each run of H elements of `x` [..., n * H] by `q`, after the scale `gamma` [n * H].

    The result has the shape, the dtype and the device of `x`.
    """
    size = len(q)
    if not x.is_floating_point() or x.element_size() < 2 or not x.dim() or x.shape[-1] % size:
        raise ValueError(f"{name}: {list(x.shape)} {x.dtype} does not fit to a rotation of {size}")
    scale = None if gamma is None else gamma.to(q.device, torch.float32)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    source, target = (t.view(-1, x.shape[-1]) for t in (x.contiguous(), result))
    for start in range(0, len(source), _ROWS):
        rows = source[start : start + _ROWS].to(q.device, torch.float32)
        rows = rows if scale is None else rows * scale
        product = rows.reshape(-1, size) @ q
        target[start : start + _ROWS] = product.view(rows.shape).to(x.device)
    return result


def _read(file: Path, name: str) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
            return tensor
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot read {name}: {error}") from error


def _folder(model: str, revision: str | None, cache: str | None) -> Path:
    """The folder of a model, which has been downloaded if it comes from a hub."""
    if Path(model).is_dir():
        return Path(model)
    modelscope = os.environ.get("VLLM_USE_MODELSCOPE", "").lower() == "true"
    hub = import_module("modelscope.hub.snapshot_download" if modelscope else "huggingface_hub")
    found = hub.snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True)
    return Path(found)
