"""vLLM's model runner with the layout of Ascend's for models that mix attention and Mamba layers.

The memory that both kinds of layers share is three regions: the leading states of all blocks, then
their keys, in which the recurrent states lie too, then their values. Block and page sizes for it
come from `ascend_runtime.hybrid_kv`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ascend_runtime.hybrid_kv import contiguous_layout


class NpuModelRunner(GPUModelRunner):
    """Runs models on the device of type "npu"."""

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Return what each layer keeps, with room for the leading states in attention's pages."""
        specs = super().get_kv_cache_spec()
        if not self._mixed(specs):
            return specs
        page = self.cache_config.mamba_page_size_padded
        return {
            name: replace(spec, page_size_padded=page)
            if isinstance(spec, FullAttentionSpec)
            else spec
            for name, spec in specs.items()
        }

    @staticmethod
    def _mixed(specs: dict[str, KVCacheSpec]) -> bool:
        kinds = {isinstance(spec, MambaSpec) for spec in specs.values()}
        return len(kinds) == 2 and contiguous_layout()

    def _reshape_kv_cache_tensors(
        self,
        kv_cache_config: KVCacheConfig,
        kv_cache_raw_tensors: dict[str, torch.Tensor],
        kernel_block_sizes: list[int],
    ) -> dict[str, torch.Tensor]:
        groups = list(self._kv_cache_spec_attn_group_iterator())
        specs = {name: group.kv_cache_spec for group in groups for name in group.layer_names}
        if not self._mixed(specs):
            return super()._reshape_kv_cache_tensors(
                kv_cache_config, kv_cache_raw_tensors, kernel_block_sizes
            )
        states = [_bytes(spec) for spec in specs.values() if isinstance(spec, MambaSpec)]
        leading = sum(states[0][:-1])
        caches = {}
        for group in groups:
            kernel_block = kernel_block_sizes[group.kv_cache_group_id]
            for name in group.layer_names:
                raw, spec = kv_cache_raw_tensors[name], group.kv_cache_spec
                blocks = raw.numel() // spec.page_size_bytes
                shared = raw[blocks * leading :]
                if isinstance(spec, AttentionSpec):
                    shape = group.backend.get_kv_cache_shape(
                        blocks * spec.block_size // kernel_block,
                        kernel_block,
                        spec.num_kv_heads,
                        spec.head_size,
                    )
                    caches[name] = shared.view(spec.dtype).view(shape)
                else:
                    caches[name] = _states(spec, raw[: blocks * leading], shared, blocks)
        return caches


def _bytes(spec: MambaSpec) -> list[int]:
    return [
        math.prod(shape) * dtype.itemsize
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    ]


def _states(
    spec: MambaSpec, leading: torch.Tensor, shared: torch.Tensor, blocks: int
) -> list[torch.Tensor]:
    """Return the states of all blocks, [blocks, *shape] each, the recurrent one in `shared`."""
    sizes = _bytes(spec)
    parts = list(leading.view(blocks, -1).split(sizes[:-1], dim=1))
    parts.append(shared[: blocks * sizes[-1]].view(blocks, -1))
    return [
        part.view(dtype).unflatten(1, shape)
        for part, dtype, shape in zip(parts, spec.dtypes, spec.shapes, strict=True)
    ]
