"""Turns fp8 weights with a scale for each block into 16-bit ones while they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

_SCALE = "_scale_inv"
_DEFAULT_BLOCK = (128, 128)
Weights = Iterable[tuple[str, torch.Tensor]]


def maybe_dequantize(
    hf_config: Any, quant_config: Any, weights: Weights, out_dtype: torch.dtype = torch.bfloat16
) -> Weights:
    """Return `weights`, dequantized if they are fp8 and the model that takes them is not.

    That is the case where the checkpoint's `quantization_config` says fp8, but vLLM has no
    quantization (`quant_config` is None). Otherwise `weights` itself is returned. See `dequantize`.
    """
    checkpoint = getattr(hf_config, "quantization_config", None)
    if quant_config is not None or not isinstance(checkpoint, Mapping):
        return weights
    if checkpoint.get("quant_method") != "fp8":
        return weights
    rows, columns = checkpoint.get("weight_block_size") or _DEFAULT_BLOCK
    return dequantize(weights, (int(rows), int(columns)), out_dtype)


def dequantize(
    weights: Weights, block: tuple[int, int], out_dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each fp8 `X.weight` in `out_dtype` as soon as its `X.weight_scale_inv` is there too.

    Either may come first. All other tensors pass through. Raises ValueError at the end if a weight
    or a scale is left without the other.
    """
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        is_scale = name.endswith(f".weight{_SCALE}")
        if not is_scale and not (name.endswith(".weight") and _is_fp8(tensor)):
            yield name, tensor
            continue
        other = waiting.pop(name.removesuffix(_SCALE) if is_scale else name + _SCALE, None)
        if other is None:
            waiting[name] = tensor
        elif is_scale:
            yield name.removesuffix(_SCALE), dequantize_block(other, tensor, block, out_dtype)
        else:
            yield name, dequantize_block(tensor, other, block, out_dtype)
    if waiting:
        names = ", ".join(list(waiting)[:5])
        raise ValueError(
            f"{len(waiting)} fp8 weights or scales have no counterpart in the checkpoint: {names}"
        )


def dequantize_block(
    weight: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int] = _DEFAULT_BLOCK,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Return weight [N, K] times the scale of its block, rounded once, to `out_dtype`.

    `scale` is [ceil(N / rows), ceil(K / columns)] for blocks of (rows, columns); the last blocks
    may be cut off. Raises ValueError for other shapes.
    """
    expected = tuple(-(-size // step) for size, step in zip(weight.shape, block, strict=False))
    if weight.dim() != 2 or tuple(scale.shape) != expected:
        raise ValueError(
            f"a weight {list(weight.shape)} in blocks of {list(block)} does not fit to scales"
            f" {list(scale.shape)}"
        )
    rows, columns = block
    factors = scale.float().repeat_interleave(rows, 0)[: weight.shape[0]]
    factors = factors.repeat_interleave(columns, 1)[:, : weight.shape[1]]
    return (weight.float() * factors).to(out_dtype)


def _is_fp8(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1
