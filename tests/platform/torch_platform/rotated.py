"""Takes a checkpoint that QuaRot rotated, but nobody quantized: weights as they are.

On an NPU the plugin's quantization has the same description of the rotation. Importing this module
registers it under the plugin's name.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)


@register_quantization_config("ascend")
class Rotated(QuantizationConfig):
    """Says what was done to a checkpoint in `quant_description`, a mapping."""

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.quant_description = description

    @classmethod
    def get_name(cls) -> str:
        """Return the name of the method."""
        return "ascend"

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Return the types of activations."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Return the capability of a CUDA device that is asked for: none."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return where the description lies, below the checkpoint's folder."""
        return ["quant_model_description.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Rotated:
        """Take the description."""
        return cls(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return what loads and applies the weights of a layer."""
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
