"""The definition of the copy of Mamba states."""

from __future__ import annotations

import pytest
import torch

from ascend_runtime.reference.mamba_copy import batch_memcpy


def pointers(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.int64)


def sizes(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_bytes_that_are_asked_for_and_no_others() -> None:
    sources = [torch.arange(1, 9, dtype=torch.uint8) + 10 * row for row in range(3)]
    targets = [torch.zeros(8, dtype=torch.uint8) for _ in range(3)]
    batch_memcpy(pointers(sources), pointers(targets), sizes(0, 1, 5))
    assert [target.tolist() for target in targets] == [
        [0] * 8,
        [11, 0, 0, 0, 0, 0, 0, 0],
        [21, 22, 23, 24, 25, 0, 0, 0],
    ]


@pytest.mark.parametrize(("source", "target"), [(2, 0), (0, 2)])
def test_a_state_that_overlaps_itself(source: int, target: int) -> None:
    state = torch.arange(10, dtype=torch.uint8)
    wanted = state.clone()
    wanted[target : target + 8] = state[source : source + 8]
    batch_memcpy(pointers([state[source:]]), pointers([state[target:]]), sizes(8))
    assert state.equal(wanted)


def test_elements_are_their_bytes() -> None:
    source, target = torch.tensor([1.5, -2.25, float("nan")]), torch.zeros(3)
    batch_memcpy(pointers([source]), pointers([target]), sizes(2 * 4))
    assert target.tolist() == [1.5, -2.25, 0.0]


def test_no_copies() -> None:
    batch_memcpy(pointers([]), pointers([]), sizes())


@pytest.mark.parametrize(
    ("rows", "bytes_", "message"),
    [((2, 1, 1), (1,), r"not \[2\], \[1\], \[1\]"), ((1, 1, 1), (-4,), "a copy of -4 bytes")],
)
def test_what_is_refused(rows: tuple[int, ...], bytes_: tuple[int, ...], message: str) -> None:
    block = torch.zeros(8, dtype=torch.uint8)
    source, target = (pointers([block] * count) for count in rows[:2])
    with pytest.raises(ValueError, match=message):
        batch_memcpy(source, target, sizes(*bytes_))
