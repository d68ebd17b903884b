"""The chunks of a batch of gated delta nets, against hand values and a plain loop."""

from __future__ import annotations

import dataclasses
import random
import sys
from types import SimpleNamespace

import pytest
import torch

from ascend_runtime.gdn import GDNChunkMeta, build_chunk_metadata
from ascend_runtime.gdn.chunks import CHUNK_SIZE

CPU = torch.device("cpu")


def cumulated(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def build(lengths: list[int], dtype: torch.dtype = torch.int32, **options) -> GDNChunkMeta:
    return build_chunk_metadata(cumulated(lengths, dtype), device=CPU, **options)


def pieces(lengths: list[int], size: int) -> list[list[int]]:
    found = []
    for sequence, length in enumerate(lengths):
        number = 0
        while number * size < length:
            found.append([sequence, number])
            number += 1
    return found


def oracle(lengths: list[int], size: int) -> dict[str, list]:
    """What the tensors must hold, one sequence after the other."""
    offsets, updates, finals = [0], [0], []
    for length in lengths:
        chunks = len(pieces([length], size))
        offsets.append(offsets[-1] + chunks)
        updates.append(updates[-1] + chunks + 1)
        finals.append(updates[-1] - 1)
    return {
        "chunk_indices": pieces(lengths, size),
        "chunk_offsets": offsets,
        "update_chunk_offsets": updates,
        "final_chunk_indices": finals,
    }


def tensors(meta: GDNChunkMeta) -> dict[str, torch.Tensor]:
    """All tensors of the result that are there, by name."""
    named = {f.name: getattr(meta, f.name) for f in dataclasses.fields(meta)}
    blocks = named.pop("block_indices")
    named |= {f"block {size}": tensor for size, tensor in blocks.items()}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


@pytest.fixture
def shared_prefill(monkeypatch: pytest.MonkeyPatch):
    """Make vLLM's group for prefill context parallelism one of so many ranks, or None."""

    def make(ranks: int | None) -> None:
        group = None if ranks is None else SimpleNamespace(world_size=ranks)
        state = SimpleNamespace(_PCP=group)
        monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", state)

    return make


@pytest.mark.parametrize(
    ("lengths", "indices", "offsets", "updates", "finals"),
    [
        ([4, 8], [[0, 0], [1, 0]], [0, 1, 2], [0, 2, 4], [1, 3]),
        ([130, 0, 64], [[0, 0], [0, 1], [0, 2], [2, 0]], [0, 3, 3, 4], [0, 4, 5, 7], [3, 4, 6]),
        ([4, 0, 8], [[0, 0], [2, 0]], [0, 1, 1, 2], [0, 2, 3, 5], [1, 2, 4]),
        ([64, 65], [[0, 0], [1, 0], [1, 1]], [0, 1, 3], [0, 2, 5], [1, 4]),
        ([1], [[0, 0]], [0, 1], [0, 2], [1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_hand_values(shared_prefill, dtype, lengths, indices, offsets, updates, finals) -> None:
    shared_prefill(2)
    meta = build(lengths, dtype)
    assert {name: tensor.tolist() for name, tensor in tensors(meta).items()} == {
        "chunk_indices": indices,
        "chunk_offsets": offsets,
        "update_chunk_offsets": updates,
        "final_chunk_indices": finals,
    }


def test_random_lengths_against_a_plain_loop(shared_prefill) -> None:
    shared_prefill(2)
    chance = random.Random(0)
    for _ in range(300):
        lengths = [
            chance.choice([0, 1, chance.randint(0, 600), 64, 65, 128])
            for _ in range(chance.randint(0, 12))
        ]
        size, other = chance.choice([16, 32, 64]), chance.choice([1, 7, 256])
        meta = build(lengths, chunk_size=size, extra_block_sizes=[other])
        found = tensors(meta)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            **oracle(lengths, size),
            f"block {other}": pieces(lengths, other),
        }
        for name, tensor in found.items():
            assert tensor.dtype == torch.int32 and tensor.is_contiguous(), name
            assert tensor.device == CPU
        assert found["chunk_indices"].shape[1:] == (2,)


def test_chunks_are_as_long_as_vllms() -> None:
    assert CHUNK_SIZE == 64
    assert build([64, 1]).chunk_offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("ranks", [None, 1])
def test_states_of_sequences_only_where_a_prefill_is_shared(shared_prefill, ranks) -> None:
    shared_prefill(ranks)
    assert set(tensors(build([130, 0, 64]))) == {"chunk_indices", "chunk_offsets"}


def test_without_vllm_no_prefill_is_shared(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.distributed.parallel_state", raising=False)
    assert build([4]).update_chunk_offsets is None


def test_blocks_of_other_sizes() -> None:
    meta = build([5, 0, 3], extra_block_sizes=(4, 608, 4))
    assert {size: found.tolist() for size, found in meta.block_indices.items()} == {
        4: [[0, 0], [0, 1], [2, 0]],
        608: [[0, 0], [2, 0]],
    }


def test_lengths_may_be_overwritten_at_once() -> None:
    starts = cumulated([70, 3])
    meta = build_chunk_metadata(starts, device=CPU)
    starts.fill_(9)
    assert meta.chunk_indices.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert meta.chunk_offsets.tolist() == [0, 2, 3]


def test_calls_share_no_memory() -> None:
    kept = [build([9, 9]) for _ in range(5)]
    storages = {meta.chunk_indices.untyped_storage().data_ptr() for meta in kept}
    assert len(storages) == 5


@pytest.mark.parametrize("sequences", range(1, 20))
def test_kernels_see_aligned_pointers(shared_prefill, sequences: int) -> None:
    """Triton compiles a kernel anew for a pointer that is not a multiple of 16 bytes."""
    shared_prefill(2)
    meta = build([70] * sequences, extra_block_sizes=(16,))
    start = meta.chunk_indices.data_ptr()
    for name, tensor in tensors(meta).items():
        assert (tensor.data_ptr() - start) % 64 == 0, name


def test_callers_default_device_does_not_matter() -> None:
    starts = cumulated([70, 3])
    with torch.device("meta"):
        meta = build_chunk_metadata(starts, device=CPU)
    assert meta.chunk_indices.tolist() == [[0, 0], [0, 1], [1, 0]]


def test_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        build([4]).chunk_offsets = None


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(0, dtype=torch.int32),
        torch.tensor(3),
        torch.zeros(1, 2, dtype=torch.int32),
        torch.zeros(2),
        torch.zeros(2, dtype=torch.int32, device="meta"),
    ],
)
def test_lengths_of_another_kind(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be int32 or int64 \[N \+ 1\] on the host, not"):
        build_chunk_metadata(wrong, device=CPU)


def test_lengths_that_decrease() -> None:
    with pytest.raises(ValueError, match=r"cumulated lengths decrease: \[0, 5, 4\]"):
        build_chunk_metadata(torch.tensor([0, 5, 4]), device=CPU)


@pytest.mark.parametrize("sizes", [{"chunk_size": 0}, {"extra_block_sizes": [16, -1]}])
def test_sizes_below_one(sizes: dict) -> None:
    with pytest.raises(ValueError, match="must have a token at least, not"):
        build([4], **sizes)
