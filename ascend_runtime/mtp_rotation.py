"""The rotation between a rotated GLM-5 and its multi-token predictor.

Ascend's quantizer rotates the hidden states of GLM-5 but not those of the predictor, and puts the
matrix that maps them back into the checkpoint, as `rot.weight` [H, H].
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from torch import nn

_MODEL_TYPE = "glm_moe_dsa"
_PARAMETER = "model.rot.weight"


def build(vllm_config: Any, hidden_size: int) -> nn.Linear | None:
    """Return the layer that maps hidden states [..., H] back, or None if nothing was rotated.

    There is one iff the target is a GLM-5 and its quantization description says `is_rot_used`. It
    is made on the device and in the dtype that are torch's defaults at the moment.
    """
    description = getattr(vllm_config.quant_config, "quant_description", None)
    if not isinstance(description, Mapping) or not description.get("is_rot_used"):
        return None
    target = getattr(vllm_config.speculative_config, "target_model_config", None)
    text = getattr(target, "hf_text_config", None)
    if getattr(text, "model_type", None) != _MODEL_TYPE:
        return None
    return nn.Linear(hidden_size, hidden_size, bias=False)


def check_loaded(rot: nn.Module | None, loaded: Container[str]) -> None:
    """Raise ValueError if there is a rotation, but the checkpoint had no matrix for it."""
    if rot is not None and _PARAMETER not in loaded:
        raise ValueError(
            "the quantization description of this checkpoint says is_rot_used, but the tensor"
            " rot.weight is missing: without it the drafts of multi-token prediction are noise"
        )
