"""Sequence parallelism as the Ascend plugin does it, under the name of flash-comm 1.

Between attention and MLP blocks each tensor-parallel rank holds the rows of its share of the
tokens: output projections scatter their sums, input projections gather their inputs.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ascend_runtime.device import is_npu

_SWITCH = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
_RANKS = "attn_output_ranks"
_configured = False


def enabled() -> bool:
    """Whether flash-comm is on: on an NPU, with several tensor-parallel ranks, if asked for.

    It is asked for by VLLM_ASCEND_ENABLE_FLASHCOMM1 ("1" or "true", in any case of letters), or by
    `enable_flashcomm1` in the additional configuration. vLLM shows that only while it builds a
    model, when `mark_first_layer` asks; the answer is kept for the steps. vLLM's compiler pass
    `enable_sp` is another matter: it changes no shape in a model's code.
    """
    if not is_npu() or _ranks() == 1:
        return False
    if os.environ.get(_SWITCH, "").lower() in ("1", "true"):
        return True
    global _configured
    config = import_module("vllm.config").get_current_vllm_config_or_none()
    if config is not None:
        more = getattr(config, "additional_config", None)
        _configured = isinstance(more, dict) and bool(more.get("enable_flashcomm1"))
    return _configured


def _ranks() -> int:
    return int(import_module("vllm.distributed").get_tensor_model_parallel_world_size())


def mark_first_layer(layers: nn.ModuleList, start: int) -> None:
    """Note on the layer that a pipeline stage runs first, at `start`, whether flash-comm is on.

    To be called when a model is built, so that the forward pass, which is traced, sees constants.
    A stage may have no layer at all.
    """
    if enabled():
        for layer in layers[start : start + 1]:
            setattr(layer, _RANKS, _ranks())


def attn_output_buffer(
    hidden_states: torch.Tensor, positions: torch.Tensor | None, layer: nn.Module
) -> torch.Tensor:
    """Return the uninitialised output of a layer's attention, like its input [rows, hidden].

    The first layer of a stage with flash-comm may be given the rows of all T tokens, that is as
    many as there are positions ([T], or [3, T]). Then the output has ceil(T / ranks) rows.
    """
    ranks: Any = getattr(layer, _RANKS, 1)
    rows = hidden_states.size(0)
    if ranks == 1 or positions is None or rows != positions.size(-1):
        return torch.empty_like(hidden_states)
    return hidden_states.new_empty((rows + ranks - 1) // ranks, *hidden_states.shape[1:])
