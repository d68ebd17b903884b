"""Paged attention in plain torch: write keys and values by slot, gather them for each request.

Slow and simple, so that its numbers can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


@dataclass
class TorchAttentionMetadata:
    """One batch: request i has the queries `query_start[i]` to `query_start[i + 1]`.

    `block_table` is [requests, blocks], `slot_mapping` [tokens], `seq_lens` [requests], all on the
    device; the second runner counts lengths on from draft to draft, in place.
    """

    num_actual_tokens: int
    query_start: list[int]
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool


class TorchAttentionBuilder(AttentionMetadataBuilder[TorchAttentionMetadata]):
    """Makes the metadata of a batch."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> TorchAttentionMetadata:
        """Take over what attention needs to know."""
        common = common_attn_metadata
        return TorchAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            query_start=common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            seq_lens=common.seq_lens[: common.num_reqs],
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
        )


class TorchAttentionBackend(AttentionBackend):
    """Ties the classes of this module together for vLLM."""

    accept_output_buffer = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        """Return the name that vLLM keeps for plugins' backends."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TorchAttention]:
        """Return the class that computes."""
        return TorchAttention

    @staticmethod
    def get_builder_cls() -> type[TorchAttentionBuilder]:
        """Return the class that makes the metadata."""
        return TorchAttentionBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return [keys and values, blocks, tokens in a block, heads, head size]."""
        return 2, num_blocks, block_size, num_kv_heads, head_size

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Whether a kind of attention is supported."""
        return attn_type in (AttentionType.DECODER, *_ENCODERS)


class TorchAttention(AttentionImpl[TorchAttentionMetadata]):
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None or logits_soft_cap or sinks is not None:
            raise NotImplementedError("the test platform has neither ALiBi, soft caps nor sinks")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.window = sliding_window
        self.attn_type = attn_type
        self.shares_kv = kv_sharing_target_layer_name is not None

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TorchAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fill and return `output`, of the queries' shape [tokens, heads, head size].

        Keys and values are [tokens, KV heads, head size]; without metadata (a profiling run) the
        result is zeros.
        """
        if attn_metadata is None:
            return output.fill_(0)
        batch = attn_metadata
        decoding = self.attn_type not in _ENCODERS
        if decoding and not self.shares_kv:
            self._write(key, value, kv_cache, batch)
        lengths = batch.seq_lens.tolist()
        for request, begin in enumerate(batch.query_start[:-1]):
            end = batch.query_start[request + 1]
            if begin == end:
                continue
            if decoding:
                blocks = batch.block_table[request]
                keys, values = self._read(kv_cache, blocks, lengths[request], query.dtype)
            else:
                keys, values = key[begin:end], value[begin:end]
            result = self._attend(query[begin:end], keys, values, decoding and batch.causal)
            output[begin:end] = result.view_as(output[begin:end])
        return output

    @staticmethod
    def _write(
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: TorchAttentionMetadata,
    ) -> None:
        slots = batch.slot_mapping[: batch.num_actual_tokens].long()
        used = slots >= 0  # the others are padding
        # Blocks beside Mamba states are apart, so the cache cannot be seen as one row of slots.
        at = slots[used] // kv_cache.shape[2], slots[used] % kv_cache.shape[2]
        for cache, new in zip(kv_cache.unbind(0), (key, value), strict=True):
            cache[at] = new[: batch.num_actual_tokens][used].to(cache.dtype)

    @staticmethod
    def _read(
        kv_cache: torch.Tensor, block_table: torch.Tensor, length: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values of a request, [length, KV heads, head size]."""
        blocks = block_table[: -(-length // kv_cache.shape[2])].long()
        keys, values = kv_cache[:, blocks].flatten(1, 2)[:, :length].to(dtype).unbind(0)
        return keys, values

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """Attend from the last positions of a sequence to all of it."""
        mask = None
        if causal or self.window:
            ages = torch.arange(key.shape[0] - query.shape[0], key.shape[0])[:, None]
            ages = (ages - torch.arange(key.shape[0])[None, :]).to(query.device)
            mask = torch.ones_like(ages, dtype=torch.bool)
            if causal:
                mask &= ages >= 0
            if self.window:
                mask &= ages < self.window
        result = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            attn_mask=mask,
            scale=self.scale,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return result[0].transpose(0, 1)
