"""What vLLM's configuration asks about MiniMax-M2 models."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

from ascend_runtime.device import is_npu
from ascend_runtime.log import logger

_log = logger(__name__)
_MODEL_TYPE = "minimax_m2"
_EXPANSION = "HCCL_OP_EXPANSION_MODE"


def effective_quantization(
    method: str | None, model_type: str, checkpoint: Mapping[str, Any] | None
) -> str | None:
    """Return the quantization method to go on with: `method`, or None for bf16.

    None for a fp8 checkpoint of MiniMax-M2 on an NPU, which has no fp8 kernels: the loader turns
    the weights into bf16. It knows them by the `quantization_config` of the Hugging Face
    configuration (`checkpoint`), so that must stay. `method` is the one that was found or asked
    for; a fp8 method without a fp8 checkpoint is left for the platform to refuse.
    """
    if method != "fp8" or model_type != _MODEL_TYPE or not is_npu():
        return method
    if not checkpoint or checkpoint.get("quant_method") != "fp8":
        return method
    _log.warning("NPUs have no fp8 kernels: the fp8 weights of this MiniMax-M2 are used as bf16")
    return None


def ensure_hccl_expansion(
    model_type: str, enforce_eager: bool, env: MutableMapping[str, str] = os.environ
) -> Literal["set", "kept", "warned", "skipped"]:
    """Have HCCL expand collectives on the AI vector cores, which graphs of MiniMax-M2 need.

    "set": HCCL_OP_EXPANSION_MODE was unset or empty and is AIV now, for this process and those it
    starts later. "kept": it was AIV. "warned": it is something else and stays. "skipped": not an
    NPU, another model, or no graphs (`enforce_eager`); `env` is untouched.
    """
    if model_type != _MODEL_TYPE or enforce_eager or not is_npu():
        return "skipped"
    value = env.get(_EXPANSION)
    if value == "AIV":
        return "kept"
    if value:
        _log.warning("%s=%s: graphs of MiniMax-M2 need AIV and may fail", _EXPANSION, value)
        return "warned"
    env[_EXPANSION] = "AIV"
    _log.info("%s=AIV is set, for the graphs of MiniMax-M2", _EXPANSION)
    return "set"
