"""The hold rule, and the gather over gloo."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gloo_ranks
import pytest
import torch

from ascend_runtime import balance

SWITCH = "VLLM_ASCEND_BALANCE_SCHEDULING"


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, False),
        ({SWITCH: ""}, False),
        ({SWITCH: "0"}, False),
        ({SWITCH: "1"}, True),
        ({SWITCH: " 1 "}, True),
    ],
)
def test_switch(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], on: bool) -> None:
    assert balance.enabled(env) is on
    monkeypatch.delenv(SWITCH, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert balance.initial_counts(3) == ([0, 0, 0] if on else None)


@pytest.mark.parametrize("value", ["true", "2", "-1", "01", "２"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"{SWITCH}='{value}': it must be 1"):
        balance.enabled({SWITCH: value})


@pytest.mark.parametrize(
    ("counts", "max_num_seqs", "holds"),
    [
        ([0, 0], 4, False),
        ([3, 0], 4, True),
        ([0, 4], 4, True),
        ([2, 2], 4, False),
        ([0], 1, False),
        ([1], 1, True),
        ([0, 0], 2, False),
        ([1, 0], 2, True),
        (None, 4, False),
        (None, 1, False),
    ],
)
def test_hold(counts: list[int] | None, max_num_seqs: int, holds: bool) -> None:
    assert balance.hold(counts, max_num_seqs) is holds


def gather_twice(rank: int) -> tuple[list[int], list[int]]:
    """Two gathers on one rank of two, the second of other numbers."""
    group = torch.distributed.group.WORLD
    running = (3, 1)[rank]
    return balance.gather(running, group), balance.gather(running + 1, group)


def test_gather_on_two_ranks(tmp_path: Path) -> None:
    assert gloo_ranks.run(gather_twice, 2, tmp_path) == [([3, 1], [4, 2]), ([3, 1], [4, 2])]


def test_only_a_balanced_scheduler_gathers() -> None:
    groups: list[object] = []
    for scheduler in (
        SimpleNamespace(balance_counts=[0, 0], balance_gather=groups.append),
        SimpleNamespace(balance_counts=None, balance_gather=groups.append),
        SimpleNamespace(balance_gather=groups.append),
        SimpleNamespace(balance_counts=[0, 0]),
        SimpleNamespace(),
    ):
        balance.after_step(scheduler, "the group")  # type: ignore[arg-type]
    assert groups == ["the group"]
