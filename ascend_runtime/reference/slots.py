"""Where the key and value of each token go in the cache, defined in plain torch."""

from __future__ import annotations

from typing import Any

import torch

PAD = -1


def compute_slot_mappings(
    tables: Any,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
) -> torch.Tensor:
    """Fill the slot mappings of vLLM's `BlockTables`, and return their first columns.

    Token t of request r at position p is in block p // (B * cp) of its row, for blocks of B slots
    and cp context-parallel ranks; its slot is that block's number times B, and the rest within.
    With cp > 1, interleaved by I, a slot of another rank is -1; so is that of a position behind the
    row's last block, and all behind the last token.

    Args:
        tables: the `BlockTables`; `slot_mappings` [groups, most tokens] is written.
        idx_mapping: int32 [B], the row of each request.
        query_start_loc: int32 [B + 1].
        positions: int64 [tokens].
        num_tokens_padded: how many columns to return.

    Returns: [groups, num_tokens_padded], a view of `tables.slot_mappings`.
    """
    slots: torch.Tensor = tables.slot_mappings
    token = torch.arange(slots.shape[1], dtype=torch.int32, device=slots.device)
    ends = query_start_loc[1 : len(idx_mapping) + 1].contiguous()
    request = torch.searchsorted(ends, token, right=True).clamp(max=max(len(idx_mapping) - 1, 0))
    inside = token < query_start_loc[len(idx_mapping)]
    if not len(idx_mapping) or not len(positions):
        slots.fill_(PAD)
        return slots[:, :num_tokens_padded]
    position = torch.where(inside, positions[token.clamp(max=len(positions) - 1).long()], 0)
    row = idx_mapping[request].long()
    for group, table in enumerate(tables.block_tables):
        size = tables.block_sizes[group]
        span = size * tables.cp_size
        place = position // span
        blocks = table.gpu.shape[1]
        block = table.gpu[row, place.clamp(max=blocks - 1)].long()
        offset = position % span
        local = place < blocks
        if tables.cp_size > 1:
            step = tables.cp_interleave
            local &= offset // step % tables.cp_size == tables.cp_rank
            offset = offset // (step * tables.cp_size) * step + offset % step
        slot = torch.where(inside & local, block * size + offset, PAD)
        slots[group] = slot.to(slots.dtype)
    return slots[:, :num_tokens_padded]
