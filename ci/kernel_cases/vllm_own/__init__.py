"""Launches of kernels of vLLM's own that no kernel of ours replaces, for lowering.

A module of this folder is a topic of operations, and has a list CASES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from ci.kernel_cases import Call, Case, Maker

REQUESTS: Final = 256
TOKENS: Final = 8192
#: Tokens of the longest request.
LENGTH: Final = 32768
VOCAB: Final = 151936


@dataclass(frozen=True)
class Tensor:
    """A tensor to be made. What is in it decides nothing: nothing runs."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def _kind(dtype: torch.dtype) -> Callable[..., Tensor]:
    return lambda *shape: Tensor(dtype, shape)


i32, i64, u64 = _kind(torch.int32), _kind(torch.int64), _kind(torch.uint64)
f32, bf16, flags = _kind(torch.float32), _kind(torch.bfloat16), _kind(torch.bool)


def own(
    operation: str,
    label: str,
    target: str,
    *args: Any,
    grid: tuple[int, ...] | None = None,
    edited: bool = False,
    **kwargs: Any,
) -> Case:
    """Describe a call of a function of vLLM, or of a kernel with `grid`, as vLLM makes it."""

    def make(maker: Maker) -> Call:
        def made(value: Any) -> Any:
            if isinstance(value, Tensor):
                return maker.empty(*value.shape, dtype=value.dtype)
            return value

        return tuple(map(made, args)), {name: made(value) for name, value in kwargs.items()}

    return Case(
        operation,
        label,
        make,
        upstream=f"vllm.{target}",
        grid=(lambda call: grid) if grid else None,
        only_vllm=True,
        edited=edited,
    )
