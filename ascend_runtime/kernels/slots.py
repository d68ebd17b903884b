"""The slot of each token; the definition is in `ascend_runtime.reference.slots`."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from ascend_runtime.kernels.launch import vector_grid
from ascend_runtime.reference.slots import PAD

_WIDTH: Final = 1024


@triton.jit(
    do_not_specialize=["requests", "most", "stride", "blocks", "size", "rank", "ranks", "step"]
)
def _slots_kernel(
    slots,
    table,
    rows,
    starts,
    positions,
    requests,
    most,
    stride,
    blocks,
    size,
    rank,
    ranks,
    step,
    pad,
    WIDTH: tl.constexpr,
    SHARED: tl.constexpr,
):
    lane = tl.arange(0, WIDTH)
    for request in range(tl.program_id(0), requests + 1, tl.num_programs(0)):
        start = tl.load(starts + request)
        if request == requests:  # what is behind the last token
            for first in range(start, most, WIDTH):
                token = first + lane
                value = tl.full((WIDTH,), pad, slots.dtype.element_ty)
                tl.store(slots + token, value, mask=token < most)
        else:
            end = tl.load(starts + request + 1)
            row = table + tl.load(rows + request).to(tl.int64) * stride
            for first in range(start, end, WIDTH):
                token = first + lane
                inside = token < end
                position = tl.load(positions + token, mask=inside, other=0).to(tl.int32)
                block = position // (size * ranks)
                offset = position - block * (size * ranks)
                known = inside & (block < blocks)
                number = tl.load(row + block, mask=known, other=0)
                if SHARED:
                    turn = offset // step
                    round = turn // ranks
                    local = turn - round * ranks == rank
                    slot = number * size + round * step + (offset - turn * step)
                    slot = tl.where(local, slot, pad)
                else:
                    slot = number * size + offset
                slot = tl.where(known, slot, pad)
                tl.store(slots + token, slot.to(slots.dtype.element_ty), mask=inside)


def compute_slot_mappings(
    tables: Any,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
) -> torch.Tensor:
    """See `ascend_runtime.reference.slots.compute_slot_mappings`; slots must be below 2^31."""
    slots: torch.Tensor = tables.slot_mappings
    requests = len(idx_mapping)
    for group, table in enumerate(tables.block_tables):
        _slots_kernel[vector_grid(requests + 1)](
            slots[group],
            table.gpu,
            idx_mapping.contiguous(),
            query_start_loc.contiguous(),
            positions.contiguous(),
            requests,
            slots.shape[1],
            table.gpu.stride(0),
            table.gpu.shape[1],
            tables.block_sizes[group],
            tables.cp_rank,
            tables.cp_size,
            tables.cp_interleave,
            PAD,
            WIDTH=_WIDTH,
            SHARED=tables.cp_size > 1,
        )
    return slots[:, :num_tokens_padded]
