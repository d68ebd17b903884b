"""What the attention of Qwen3-Next and Qwen3.5 does to its projection, as one operator on NPUs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch

from ascend_runtime import dispatch
from ascend_runtime.reference.qwen import Parts
from ascend_runtime.reference.qwen import split_qkv_norm_rope as _split
from ascend_runtime.replaced import stands_for

_NAME: Final = "qwen.split_qkv_norm_rope"
_LAYERS: Final = "vllm.model_executor.layers"
#: Rotary embeddings that differ in their tables alone; the last has an axis for each position.
_ROPES: Final = ("RotaryEmbedding", "YaRNScalingRotaryEmbedding", "MRotaryEmbedding")


def fuses_qkv(layer: Any, positions: torch.Tensor, qkv: torch.Tensor) -> bool:
    """Whether `split_qkv_norm_rope` is to be called for a layer; torch.compile sees a constant.

    It is on an NPU that has the kernel for it, or if somebody forces an implementation (see
    `ascend_runtime.dispatch`), and if the layer does what the operation does: it has norms of
    class GemmaRMSNorm with one epsilon, a rotary embedding of the neox style whose class has no
    arithmetic beyond its table of cos and sin (see `_ROPES`), or the classes that a platform
    registered in their places, and no positions of several axes but with sections for them.

    Args:
        layer: vLLM's Qwen3NextAttention.
        positions: [T], or [3, T].
        qkv: what its `qkv_proj` gave.
    """
    if not _wanted(qkv.device.type):
        return False
    rope, q_norm, k_norm = layer.rotary_emb, layer.q_norm, layer.k_norm
    if not (_is_rope(type(rope)) and _is_norm(type(q_norm)) and _is_norm(type(k_norm))):
        return False
    table = rope.cos_sin_cache
    return (
        rope.is_neox_style
        and q_norm.variance_epsilon == k_norm.variance_epsilon
        and rope.head_size == layer.head_dim
        and table.size(1) == rope.rotary_dim
        and table.device == qkv.device
        and _fits(qkv.device.type, layer.head_dim, rope.rotary_dim)
        and qkv.dim() == 2
        and (positions.dim() == 1 or len(_sections(rope)) == 3)
    )


def split_qkv_norm_rope(layer: Any, positions: torch.Tensor, qkv: torch.Tensor) -> Parts:
    """Split the projection of a layer; its q and k are normalised and rotated.

    Args:
        layer, positions, qkv: what `fuses_qkv` was true for.

    Returns: q [T, heads * D], k and v [T, kv heads * D], and the gate [T, heads * D], before its
    sigmoid, or None: contiguous. One operator, opaque to torch.compile; it is defined in
    `ascend_runtime.reference.qwen`.
    """
    rope = layer.rotary_emb
    q, k, v, *gate = _split_op(
        qkv,
        layer.q_norm.weight,
        layer.k_norm.weight,
        rope.cos_sin_cache,
        positions,
        layer.num_heads,
        layer.num_kv_heads,
        layer.head_dim,
        layer.q_norm.variance_epsilon,
        bool(layer.attn_output_gate),
        _sections(rope),
        bool(getattr(rope, "mrope_interleaved", False)),
    )
    return q, k, v, gate[0] if gate else None


def _sections(rope: Any) -> list[int]:
    return list(getattr(rope, "mrope_section", None) or ())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _wanted(device_type: str) -> bool:
    """Whether the kernel would be taken on a device, or an implementation is forced."""
    if device_type not in ("npu", "cpu"):
        return False
    forced = dispatch.choice(_NAME, "none") != "upstream"
    return forced or (device_type == "npu" and dispatch.choice(_NAME, "npu") == "kernel")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _fits(device_type: str, head_dim: int, rotary_dim: int) -> bool:
    """Whether what would be taken takes heads of a size; the reference takes all."""
    if dispatch.choice(_NAME, device_type) != "kernel":
        return True
    kernels = import_module("ascend_runtime.kernels.qwen")
    return bool(kernels.takes_heads(head_dim, rotary_dim))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_rope(cls: type) -> bool:
    module = import_module(f"{_LAYERS}.rotary_embedding")
    return any(stands_for(cls, getattr(module, name)) for name in _ROPES)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_norm(cls: type) -> bool:
    return stands_for(cls, import_module(f"{_LAYERS}.layernorm").GemmaRMSNorm)


def _parts(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    gate: bool,
    mrope_section: Sequence[int],
    mrope_interleaved: bool,
) -> list[torch.Tensor]:
    """An operator returns no None: without a gate there are three."""
    made = _dispatched(
        qkv,
        q_weight,
        k_weight,
        cos_sin_cache,
        positions,
        num_heads,
        num_kv_heads,
        head_dim,
        eps,
        gate,
        mrope_section,
        mrope_interleaved,
    )
    return [one for one in made if one is not None]


_dispatched = dispatch.op(_NAME)(_split)
_split_op = torch.library.custom_op(
    "ascend_runtime::split_qkv_norm_rope",
    _parts,
    mutates_args=(),
    schema="(Tensor qkv, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, Tensor positions,"
    " int num_heads, int num_kv_heads, int head_dim, float eps, bool gate, int[] mrope_section,"
    " bool mrope_interleaved) -> Tensor[]",
)


@_split_op.register_fake
def _(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    gate: bool,
    mrope_section: Sequence[int],
    mrope_interleaved: bool,
) -> list[torch.Tensor]:
    heads = [num_heads, num_kv_heads, num_kv_heads, *([num_heads] if gate else ())]
    return [qkv.new_empty(qkv.size(0), count * head_dim) for count in heads]
