"""Block sizes of models that mix attention with Mamba-like layers, on an NPU.

But for 310P, an NPU lays the memory that both kinds share out in three regions: the small leading
states of all blocks, then the keys of all blocks, which the recurrent states alias, then the values
of all blocks. So a block's keys must be exactly as large as a recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_runtime.device import is_310p, is_npu
from ascend_runtime.log import logger

_log = logger(__name__)
#: Tokens that Ascend's attention kernels take at a time; a block is a multiple of it.
KERNEL_BLOCK = 128


@dataclass(frozen=True)
class HybridPlan:
    """Tokens in a block, bytes of its keys and values, and bytes of its padded Mamba page."""

    block_size: int
    attn_page_bytes: int
    mamba_page_bytes_padded: int


def kernel_block_alignment(default: int, use_mla: bool = False) -> int:
    """Return what a block size must be a multiple of: `default`, or 128 tokens on an NPU.

    Raises RuntimeError for MLA on 310P, which has no kernels for it.
    """
    if not is_npu():
        return default
    if use_mla and is_310p():
        raise RuntimeError("hybrid models with MLA attention do not run on 310P")
    return KERNEL_BLOCK


def contiguous_layout() -> bool:
    """Whether keys, values and states are laid out in three regions: on any NPU but 310P."""
    return is_npu() and not is_310p()


def plan_contiguous(
    state_bytes: Sequence[int],
    k_bytes_per_token: int,
    v_bytes_per_token: int,
    block_size: int | None,
    kernel_block: int = KERNEL_BLOCK,
) -> HybridPlan | None:
    """Find the only block size of which the keys are as large as the recurrent state.

    `state_bytes` are the states of a block in the model's order, the recurrent one last; without
    any there is no plan. `block_size` is the one asked for, in tokens: another one is overridden, a
    larger one with a warning. Raises ValueError if no multiple of `kernel_block` tokens fits.
    """
    if not state_bytes:
        return None
    if k_bytes_per_token <= 0:
        raise ValueError(f"keys take {k_bytes_per_token} bytes a token; it must be some")
    *leading, recurrent = state_bytes
    step = kernel_block * k_bytes_per_token
    if recurrent % step or not recurrent:
        below = recurrent // step * step
        nearest = f"{below} or {below + step}" if below else f"{step}"
        raise ValueError(
            f"no block size fits this hybrid model: its recurrent state has {recurrent} bytes, the"
            f" keys {k_bytes_per_token} a token, so {kernel_block} tokens {step}; the state must be"
            f" a multiple of that (nearest: {nearest}); another tensor-parallel size or KV cache"
            " dtype may fit"
        )
    tokens = recurrent // k_bytes_per_token
    if block_size and block_size > tokens:
        _log.warning(
            "block size %d is overridden: a recurrent state has the size of %d tokens' keys",
            block_size,
            tokens,
        )
    page = tokens * (k_bytes_per_token + v_bytes_per_token)
    return HybridPlan(tokens, page, sum(leading) + page)


def apply(vllm_config: Any, model_cls: Any, kv_cache_dtype: torch.dtype) -> None:
    """Write block and page sizes for the contiguous layout into `vllm_config.cache_config`.

    `model_cls` is the hybrid model's class, `kv_cache_dtype` the dtype of keys and values. Raises
    ValueError if the model does not fit the layout (`plan_contiguous`), or for the Mamba cache mode
    "all", which wants a block size of its own.
    """
    cache, model = vllm_config.cache_config, vllm_config.model_config
    if cache.mamba_cache_mode == "all":
        raise ValueError(
            "Mamba cache mode 'all' is not supported with the contiguous layout of NPUs: use"
            " --mamba-cache-mode align, or --no-enable-prefix-caching"
        )
    shapes = model_cls.get_mamba_state_shape_from_config(vllm_config)
    dtypes = model_cls.get_mamba_state_dtype_from_config(vllm_config)
    sizes = [
        torch.Size(shape).numel() * dtype.itemsize
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    heads = model.get_num_kv_heads(vllm_config.parallel_config)
    keys = heads * model.get_head_size() * kv_cache_dtype.itemsize
    values = 0 if model.use_mla else keys  # MLA keeps keys and values in one latent
    plan = plan_contiguous(sizes, keys, values, cache.block_size)
    if plan is None:
        return
    if cache.block_size != plan.block_size:
        _log.info("attention block size is %d tokens for this hybrid model", plan.block_size)
    cache.block_size = plan.block_size
    cache.mamba_page_size_padded = plan.mamba_page_bytes_padded
    if cache.mamba_cache_mode == "align":
        cache.mamba_block_size = plan.block_size
