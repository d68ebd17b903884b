"""Slots of a step's tokens: a long prompt, many decodes, context parallelism."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from ci.kernel_cases import Call, Case, Maker, returned


def _slots(lengths: list[int], sizes: list[int], ranks: int, dtype: torch.dtype) -> Case:
    def make(maker: Maker) -> Call:
        most = sum(lengths) + 100
        rows = len(lengths) + 2
        blocks = 40
        tables = SimpleNamespace(
            slot_mappings=maker.empty(len(sizes), most, dtype=dtype),
            block_tables=[
                SimpleNamespace(gpu=maker.integers(0, 5000, rows, blocks)) for _ in sizes
            ],
            block_sizes=sizes,
            cp_size=ranks,
            cp_rank=ranks - 1,
            cp_interleave=1,
        )
        ends = torch.tensor([0, *lengths]).cumsum(0)
        positions = torch.cat([torch.arange(7, 7 + one) for one in lengths])
        args = (
            tables,
            maker.permutation(rows)[: len(lengths)],
            ends.int().to(maker.device),
            positions.to(maker.device),
            sum(lengths) + 3,
        )
        return args, {}

    def results(result: object, call: Call) -> list[torch.Tensor]:
        return [*returned(result, call), call[0][0].slot_mappings]

    return Case(
        "slots.compute_slot_mappings",
        f"{len(lengths)} requests, {sum(lengths)} tokens, blocks of {sizes}, {ranks} ranks",
        make,
        results,
    )


CASES = [
    _slots([4096, *[1] * 63], [128, 256], 1, torch.int32),
    _slots([1, 0, 700], [16, 16], 2, torch.int64),
]
