"""What vLLM asks about MiniMax-M2: its configuration, and the norms in its attention."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from typing import Any, Literal, cast

import torch

from ascend_runtime.device import is_npu
from ascend_runtime.dispatch import choice, op
from ascend_runtime.log import logger
from ascend_runtime.reference import minimax as reference
from ascend_runtime.replaced import stands_for

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


_norm = op("minimax.norm_qk")(reference.norm_qk)
_norm_rope = op("minimax.fused_qkv_norm_rope")(reference.fused_qkv_norm_rope)


def has_fused_qk(q_norm: Any, k_norm: Any, q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether a kernel does `norm_qk` for these; if not, vLLM's own lines are right."""
    if not _has_kernel("minimax.norm_qk", q.device.type):
        return False
    from ascend_runtime.kernels import minimax as kernels

    return kernels.norm_qk_fits(*_norm_arguments(q_norm, k_norm, q, k))


def norm_qk(
    q_norm: Any, k_norm: Any, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm queries and keys over all heads of all ranks, each with its own eps and weight.

    Args:
        q_norm, k_norm: vLLM's MiniMaxText01RMSNormTP.
        q, k: [T, Q] and [T, K], the heads of this rank, any float, may be strided.

    Returns: as `q` and `k`, contiguous, rounded once.
    """
    found = _norm(*_norm_arguments(q_norm, k_norm, q, k))
    return cast("tuple[torch.Tensor, torch.Tensor]", found)


def use_fused_qkv(attention: Any, qkv: torch.Tensor, positions: torch.Tensor) -> bool:
    """Whether a kernel does `fused_qkv_norm_rope` for a layer, and as its rotation would.

    That is vLLM's plain rotation, in GPT-NeoX's style, or what the platform put in its place;
    others may do more than their table of cosines and sines says. Positions must be one for each
    token, [T], and the table where `qkv` is.
    """
    rotary = attention.rotary_emb
    if not (
        _has_kernel("minimax.fused_qkv_norm_rope", qkv.device.type)
        and _is_plain(type(rotary))
        and rotary.is_neox_style
        and rotary.head_size == attention.head_dim
        and positions.dim() == 1
        and qkv.dim() == 2
        and rotary.cos_sin_cache.device == qkv.device
    ):
        return False
    from ascend_runtime.kernels import minimax as kernels

    arguments = _norm_rope_arguments(attention, qkv, positions)
    return kernels.fused_qkv_norm_rope_fits(*arguments)


def fused_qkv_norm_rope(
    attention: Any, qkv: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split, norm and rotate what the projections of a layer gave, with one rounding.

    Args:
        attention: vLLM's MiniMaxM2Attention.
        qkv: [T, q_size + 2 * kv_size], any float.
        positions: [T], integers.

    Returns: q [T, q_size] and k [T, kv_size], contiguous; v [T, kv_size], a view.

    Raises ValueError if positions are not one for each token.
    """
    found = _norm_rope(*_norm_rope_arguments(attention, qkv, positions))
    return cast("tuple[torch.Tensor, torch.Tensor, torch.Tensor]", found)


def _norm_arguments(q_norm: Any, k_norm: Any, q: torch.Tensor, k: torch.Tensor) -> tuple[Any, ...]:
    eps = q_norm.variance_epsilon, k_norm.variance_epsilon
    return q, k, q_norm.weight, k_norm.weight, *eps, q_norm.tp_world, _all_reduce


def _norm_rope_arguments(
    attention: Any, qkv: torch.Tensor, positions: torch.Tensor
) -> tuple[Any, ...]:
    q_norm, k_norm, rotary = attention.q_norm, attention.k_norm, attention.rotary_emb
    return (
        qkv,
        q_norm.weight,
        k_norm.weight,
        positions,
        rotary.cos_sin_cache,
        attention.q_size,
        attention.kv_size,
        attention.head_dim,
        rotary.rotary_dim,
        q_norm.variance_epsilon,
        k_norm.variance_epsilon,
        q_norm.tp_world,
        _all_reduce,
    )


def _all_reduce(squares: torch.Tensor) -> torch.Tensor:
    # A statement: Dynamo traces no `import_module`.
    from vllm.distributed import (  # type: ignore[import-not-found, unused-ignore]
        tensor_model_parallel_all_reduce,
    )

    return cast("torch.Tensor", tensor_model_parallel_all_reduce(squares))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernel(name: str, device_type: str) -> bool:
    found: str = choice(name, device_type)
    return found == "kernel"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_plain(kind: type) -> bool:
    rotary = import_module("vllm.model_executor.layers.rotary_embedding")
    return stands_for(kind, rotary.RotaryEmbedding)
