"""The chunks of a batch of gated delta nets, worked out on the host."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

import torch

#: Tokens of a chunk in vLLM's chunked gated delta rule.
CHUNK_SIZE: Final = 64
#: int32 numbers to which each part's start in the shared copy is aligned. Triton compiles a kernel
#: anew for a pointer that is not a multiple of 16 bytes; 64 bytes also suit the vector unit.
_ALIGNMENT: Final = 16


@dataclass(frozen=True, eq=False)
class GDNChunkMeta:
    """The chunks of N sequences, NT in all, as contiguous int32 tensors on the device.

    `chunk_indices` [NT, 2] has the sequence of each chunk and its number in the sequence, in order;
    an empty sequence has none. `chunk_offsets` [N + 1] is the number of chunks before each
    sequence, and in all.

    With prefill context parallelism, else None: `update_chunk_offsets` [N + 1] is the same with one
    entry more for each sequence, its last state, and `final_chunk_indices` [N] where that entry is.

    `block_indices` has, by block size in tokens, what `chunk_indices` would be for it, [NB, 2].
    """

    chunk_indices: torch.Tensor
    chunk_offsets: torch.Tensor
    update_chunk_offsets: torch.Tensor | None = None
    final_chunk_indices: torch.Tensor | None = None
    block_indices: Mapping[int, torch.Tensor] = field(default_factory=dict)


def build_chunk_metadata(
    cu_seqlens_cpu: torch.Tensor,
    *,
    device: torch.device,
    chunk_size: int = CHUNK_SIZE,
    extra_block_sizes: Sequence[int] = (),
) -> GDNChunkMeta:
    """Cut sequences into chunks of `chunk_size` tokens, and into blocks of other sizes if asked.

    `cu_seqlens_cpu` [N + 1] are the cumulated lengths in tokens, int32 or int64 on the host. They
    are read before the function returns, and so may be overwritten then. Nothing waits for the
    device: all tensors go there in one copy on the current stream, out of memory that is allocated
    for this call. So no later call overwrites it, and the allocator of pinned memory does not give
    it away before the copy is done.

    Raises ValueError for lengths that are not as described or negative, and for sizes below 1.
    """
    lengths = _lengths(cu_seqlens_cpu)
    counts, indices = _cut(lengths, chunk_size)
    parts = [indices, _offsets(counts)]
    parallel = _prefill_context_parallel_size() > 1
    if parallel:
        update = _offsets(counts + 1)
        parts += [update, update[1:] - 1]
    sizes = list(dict.fromkeys(extra_block_sizes))
    parts += [_cut(lengths, size)[1] for size in sizes]

    copies = iter(_on_device(parts, torch.device(device)))
    return GDNChunkMeta(
        next(copies),
        next(copies),
        next(copies) if parallel else None,
        next(copies) if parallel else None,
        dict(zip(sizes, copies, strict=True)),
    )


def _lengths(cu_seqlens: torch.Tensor) -> torch.Tensor:
    sound = cu_seqlens.dim() == 1 and cu_seqlens.numel() and cu_seqlens.device.type == "cpu"
    if not sound or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cumulated lengths must be int32 or int64 [N + 1] on the host, not"
            f" {cu_seqlens.dtype} {list(cu_seqlens.shape)} on {cu_seqlens.device}"
        )
    lengths = cu_seqlens.diff().to(torch.int32)
    if bool((lengths < 0).any()):
        raise ValueError(f"cumulated lengths decrease: {cu_seqlens.tolist()}")
    return lengths


def _cut(lengths: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many pieces each sequence has, [N], and of each piece sequence and number."""
    if size < 1:
        raise ValueError(f"chunks and blocks must have a token at least, not {size}")
    counts = (lengths + (size - 1)).div(size, rounding_mode="floor")
    sequences = torch.repeat_interleave(counts)
    before = _offsets(counts)[:-1].repeat_interleave(counts)
    # Not on a default device that a caller has set: all this is the host's.
    numbers = torch.arange(len(sequences), dtype=torch.int32, device="cpu") - before
    return counts, torch.stack([sequences, numbers], dim=1)


def _offsets(counts: torch.Tensor) -> torch.Tensor:
    offsets = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def _on_device(parts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy tensors of the host to the device all at once."""
    room = [-(-part.numel() // _ALIGNMENT) * _ALIGNMENT for part in parts]
    pinned = device.type != "cpu" and _can_pin()
    staging = torch.zeros(sum(room), dtype=torch.int32, device="cpu", pin_memory=pinned)
    for put, part in zip(staging.split_with_sizes(room), parts, strict=True):
        put[: part.numel()] = part.flatten()
    copied = staging.to(device, non_blocking=True)
    return [
        got[: part.numel()].view(part.shape)
        for got, part in zip(copied.split_with_sizes(room), parts, strict=True)
    ]


def _can_pin() -> bool:
    return bool(import_module("vllm.utils.platform_utils").is_pin_memory_available())


def _prefill_context_parallel_size() -> int:
    """Ranks that share a prefill: 1 where vLLM has made no such group."""
    group = getattr(sys.modules.get("vllm.distributed.parallel_state"), "_PCP", None)
    return 1 if group is None else int(group.world_size)
