"""The names of 8-bit KV cache ("C8") scales in checkpoints of Ascend's quantizer, modelslim."""

from __future__ import annotations

from collections.abc import Container

from ascend_runtime.log import logger

_log = logger(__name__)
_SUFFIXES = (
    *(f"fa_{x}.{kind}" for x in "qkv" for kind in ("scale", "offset")),
    "indexer.q_rot",
    "indexer.k_rot",
)
_told: set[str] = set()


def remap_modelslim_name(name: str, params: Container[str]) -> str | None:
    """Return the name that the model has for a tensor of a checkpoint.

    Scales and offsets of the 8-bit cache, and rotations of the indexer, belong to the attention
    layer, which MLA models wrap once or twice: the first of these names that is in `params` is
    returned. Without any the answer is None, for the tensor to be skipped, with one warning for
    each kind. Every other name is returned as it is.
    """
    suffix = next((s for s in _SUFFIXES if name.endswith(f".{s}")), None)
    if suffix is None:
        return name
    prefix = name.removesuffix(suffix)
    candidates = (f"{prefix}mla_attn.mla_attn.{suffix}", f"{prefix}mla_attn.{suffix}", name)
    found = next((candidate for candidate in candidates if candidate in params), None)
    if found is None and suffix not in _told:
        _told.add(suffix)
        _log.warning("%s is not loaded, nor other %s: this model has none", name, suffix)
    return found
