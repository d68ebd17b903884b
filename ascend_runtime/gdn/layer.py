"""What surrounds the kernels in the layer of a gated delta net."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import torch

from ascend_runtime import sp
from ascend_runtime.device import is_npu
from ascend_runtime.dispatch import op
from ascend_runtime.reference.gdn.split import split_qkvzba as _split

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def split_qkvzba(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
) -> _Parts:
    """Sort the columns of Qwen3-Next's two projections by what they mean; nothing is computed.

    With Hk key heads, Hv value heads (a multiple r of Hk) and the head sizes Dk and Dv, `qkvz` is
    [T, Hk * (2 * Dk + 2 * r * Dv)]: of each key head its q, its k, then v and z of its r value
    heads. `ba` is [T, 2 * Hv]: of each key head r of b, then r of a. Returns mixed
    [T, 2 * Hk * Dk + Hv * Dv], which is all q, all k, all v; z [T, Hv, Dv]; b [T, Hv]; a [T, Hv]:
    contiguous, of the dtypes of the arguments, and no views of them. T may be 0.

    On an NPU it is one operator, opaque to torch.compile. Elsewhere it is traced, so that it is
    fused with its neighbours as vLLM's own statements were.
    """
    sizes = (num_k_heads, num_v_heads, head_k_dim, head_v_dim)
    if is_npu(qkvz):
        return cast("_Parts", _split_op(qkvz, ba, *sizes))
    return _split(qkvz, ba, *sizes)


_split_op = torch.library.custom_op(
    "ascend_runtime::split_qkvzba",
    op("gdn.split_qkvzba")(_split),
    mutates_args=(),
    schema="(Tensor qkvz, Tensor ba, int hk, int hv, int dk, int dv)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


@_split_op.register_fake
def _(qkvz: torch.Tensor, ba: torch.Tensor, hk: int, hv: int, dk: int, dv: int) -> _Parts:
    rows = qkvz.size(0)
    return (
        qkvz.new_empty(rows, 2 * hk * dk + hv * dv),
        qkvz.new_empty(rows, hv, dv),
        ba.new_empty(rows, hv),
        ba.new_empty(rows, hv),
    )


def core_token_count(attn_metadata: Any, x: torch.Tensor) -> int:
    """Return how many rows of `x` [T, ...] the core works on; its results are cut in any case.

    These are the tokens of the batch, `num_actual_tokens` of vLLM's GDNAttentionMetadata. With
    sequence parallelism they are all T, as on every rank, with the padding that evens out the
    ranks; but not where all requests decode, which takes a row for each request.
    """
    decode_only = attn_metadata.num_decodes > 0 and attn_metadata.num_prefills == 0
    if not decode_only and sp.enabled():
        return x.size(0)
    return cast("int", attn_metadata.num_actual_tokens)


def needs_autotune_warmup() -> bool:
    """Whether kernels are tuned on first use, for which memory must be free; not on NPUs."""
    return not is_npu()


def after_core_attention(layer_name: str) -> None:
    """On an NPU, offer the states of a layer to the KV connector, as vLLM's attention does.

    The connector gets the layer's name, its states as they were bound (convolution and recurrent),
    and its GDNAttentionMetadata. Nothing is done without a connector of version 1 that has
    metadata for the step, or in a profile run.
    """
    if not is_npu():
        return
    transfer = import_module("vllm.distributed.kv_transfer")
    if not transfer.has_kv_transfer_group() or not transfer.is_v1_kv_transfer_group():
        return
    context = import_module("vllm.forward_context").get_forward_context()
    connector = transfer.get_kv_transfer_group()
    if context.attn_metadata is None or not connector.has_connector_metadata():
        return
    states = context.no_compile_layers[layer_name].kv_cache[context.virtual_engine]
    connector.save_kv_layer(layer_name, states, context.attn_metadata[layer_name])
