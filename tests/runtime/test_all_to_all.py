"""The exchange of tensors among gloo ranks, against what one process can work out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gloo_ranks
import pytest
import torch
import torch.distributed as dist

from ascend_runtime import collectives

#: The inputs of all ranks, and the arguments of the calls; every rank makes them for itself.
Call = tuple[list[torch.Tensor], list[dict]]


def same(make: Callable[[int], torch.Tensor], world: int, **arguments: object) -> Call:
    return [make(rank) for rank in range(world)], [arguments] * world


def small(rank: int) -> torch.Tensor:
    return torch.arange(8).view(4, 2) + 100 * rank


def deep(rank: int) -> torch.Tensor:
    return torch.arange(2 * 6 * 3).view(2, 6, 3) + 1000 * rank


def uneven(rank: int) -> torch.Tensor:
    """Ranks hold 2, 0 and 3 columns, of which nobody is told but through the sizes."""
    return torch.arange(6 * (2, 0, 3)[rank]).view(6, -1) + 1000 * rank


CALLS: dict[int, dict[str, Call]] = {
    2: {
        "default": same(small, 2),
        "sizes": same(small, 2, gather_dim=1, scatter_sizes=[3, 1], gather_sizes=[2, 2]),
        "nothing for one": same(small, 2, scatter_sizes=[4, 0], gather_sizes=[2, 2]),
        "not contiguous": same(lambda rank: small(rank).t(), 2, scatter_dim=1, gather_dim=0),
        "one dimension": same(lambda rank: torch.arange(4) + 10 * rank, 2),
        "half precision": same(lambda rank: small(rank).to(torch.bfloat16), 2),
    },
    3: {
        "negative": same(deep, 3, scatter_dim=-2, gather_dim=-1),
        "same": same(deep, 3, scatter_dim=1, gather_dim=1),
        "middle": same(deep, 3, scatter_dim=2, gather_dim=0),
        "uneven": same(uneven, 3, scatter_sizes=[1, 5, 0], gather_sizes=[2, 0, 3]),
        "uneven same": (  # each rank cuts its rows in its own way
            [deep(rank) for rank in range(3)],
            [
                {"scatter_dim": 1, "gather_dim": 1, "scatter_sizes": cut, "gather_sizes": come}
                for cut, come in (
                    ([1, 2, 3], [1, 4, 0]),
                    ([4, 1, 1], [2, 1, 0]),
                    ([0, 0, 6], [3, 1, 6]),
                )
            ],
        ),
    },
}


def expected(call: Call, rank: int) -> torch.Tensor:
    inputs, arguments = call
    parts = []
    for tensor, given in zip(inputs, arguments, strict=True):
        dim = given.get("scatter_dim", 0)
        sizes = given.get("scatter_sizes") or tensor.size(dim) // len(inputs)
        parts.append(tensor.split(sizes, dim)[rank])
    return torch.cat(parts, arguments[rank].get("gather_dim", -1))


def exchanged(rank: int, world: int) -> dict[str, object]:
    """What a rank gets from each call."""
    group = dist.group.WORLD
    answers: dict[str, object] = {}
    for name, (inputs, arguments) in CALLS[world].items():
        mine = inputs[rank].clone()
        got = collectives.all_to_all(mine, group, rank, world, **arguments[rank])
        assert mine.equal(inputs[rank])
        answers[name] = (got.tolist(), str(got.dtype), got.is_contiguous())
    there = collectives.all_to_all(deep(rank).transpose(0, 1), group, rank, world, 0, 1)
    back = collectives.all_to_all(there, group, rank, world, 1, 0)
    answers["round trip"] = back.equal(deep(rank).transpose(0, 1))
    return answers


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict]]:
    """What each rank returned, by the number of ranks."""
    return {
        world: gloo_ranks.run(
            partial(exchanged, world=world), world, tmp_path_factory.mktemp("gloo")
        )
        for world in CALLS
    }


@pytest.mark.parametrize(
    ("world", "name"), [(world, name) for world, calls in CALLS.items() for name in calls]
)
def test_pieces_are_exchanged(outcome, world: int, name: str) -> None:
    for rank in range(world):
        wanted = expected(CALLS[world][name], rank)
        assert outcome[world][rank][name] == (wanted.tolist(), str(wanted.dtype), True)


def test_numbers_worked_out_by_hand(outcome) -> None:
    first, second = outcome[2]
    assert first["default"][0] == [[0, 1, 100, 101], [2, 3, 102, 103]]
    assert second["default"][0] == [[4, 5, 104, 105], [6, 7, 106, 107]]
    assert first["sizes"][0] == [[0, 1, 100, 101], [2, 3, 102, 103], [4, 5, 104, 105]]
    assert second["sizes"][0] == [[6, 7, 106, 107]]
    assert second["nothing for one"][0] == []


@pytest.mark.parametrize("world", CALLS)
def test_there_and_back(outcome, world: int) -> None:
    assert [answer["round trip"] for answer in outcome[world]] == [True] * world


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scatter_sizes": [3, 2]}, "takes both scatter_sizes and gather_sizes"),
        ({"gather_sizes": [2, 2]}, "takes both scatter_sizes and gather_sizes"),
        ({}, "cannot cut 5 into 2 equal pieces"),
        ({"scatter_sizes": [3, 1], "gather_sizes": [2, 2]}, r"\[3, 1\] do not add up to 5"),
        ({"scatter_sizes": [5], "gather_sizes": [2, 2]}, "scatter_sizes .* not the extents of 2"),
        ({"scatter_sizes": [6, -1], "gather_sizes": [2, 2]}, "scatter_sizes .* not the extents"),
        ({"scatter_sizes": [3, 2], "gather_sizes": [2]}, "gather_sizes .* not the extents of 2"),
        ({"scatter_sizes": [3, 2], "gather_sizes": [2, 3]}, r"gather_sizes\[1\] is 3, .* itself 2"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_sent(
    monkeypatch, arguments: dict, words: str
) -> None:
    monkeypatch.setattr(dist, "all_to_all_single", lambda *a: pytest.fail("sent"))
    with pytest.raises(ValueError, match=words):
        collectives.all_to_all(torch.zeros(5, 2), None, 1, 2, **arguments)
