"""W1: HCCL's options of a process group, and its all-to-all."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gloo_ranks
import pytest
import torch
import torch.distributed as dist
from platform_kit import on_platform
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import stateless_coordinator
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.v1.attention.ops import common

RANKS = 2
GROUPS = ("tp", "dp", "dynamic_eplb", "mc2_1")


def load_hccl(seen: list) -> None:
    """Name the device npu, and have a backend "hccl": gloo, that shows the options it got."""
    options = type("Options", (), {})
    group = SimpleNamespace(ProcessGroupHCCL=SimpleNamespace(Options=options))
    sys.modules["torch_npu"] = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=group))
    torch.utils.rename_privateuse1_backend("npu")

    def create(given: object, options: object) -> dist.ProcessGroupGloo:
        seen.append(getattr(options, "hccl_config", type(options).__name__))
        return dist.ProcessGroupGloo(given.store, given.group_rank, given.group_size)

    dist.Backend.register_backend("hccl", create, extended_api=True, devices=["cpu"])


def off_npu(rank: int) -> dict[str, object]:
    """What gloo groups of each kind of platform get, through vLLM's own initialisation."""
    given = []
    real = dist.new_group
    dist.new_group = lambda *a, **k: (given.append(k), real(*a, **k))[1]
    devices = {}
    for kind in ("cpu", "cuda", "rocm", "xpu"):
        with on_platform(kind):  # communicators need a device, which only the CPU has here
            group = GroupCoordinator([[0, 1]], rank, "gloo", kind == "cpu", group_name="tp")
        devices[kind] = str(group.device)
        if kind == "cpu":
            total = group.all_reduce(torch.ones(1)).item()
    dist.new_group = real
    return {
        "config": get_current_vllm_config_or_none(),
        "devices": devices,
        "total": total,
        "options": [keywords.get("pg_options") for keywords in given],
    }


def on_npu(rank: int) -> dict[str, object]:
    seen: list = []
    load_hccl(seen)
    made = {}
    with on_platform("npu"):
        for name in GROUPS:
            made[name] = GroupCoordinator([[0, 1]], rank, "hccl", True, group_name=name)
    group = made["tp"]
    start = torch.arange(8).view(4, 2) + 100 * rank
    calls = []
    real = dist.all_to_all_single
    dist.all_to_all_single = lambda *a: (calls.append(1), real(*a))[1]
    default = group.all_to_all(start)
    sizes = group.all_to_all(start, 0, 1, [3, 1], [2, 2])
    back = group.all_to_all(group.all_to_all(start, 0, 1), 1, 0)
    return {
        "seen": seen,
        "devices": [repr(d) for d in (group.device, group.device_communicator.device)],
        "default": default.tolist(),
        "sizes": sizes.tolist(),
        "back": back.equal(start),
        "errors": [
            error(group, torch.zeros(5, 2)),
            error(group, start, scatter_sizes=[3, 1]),
            error(group, start, gather_sizes=[2, 2]),
        ],
        "calls": len(calls),
    }


def error(group: GroupCoordinator, *arguments: object, **keywords: object) -> str:
    try:
        return str(group.all_to_all(*arguments, **keywords))
    except ValueError as caught:
        return str(caught)


def both(rank: int) -> dict[str, object]:
    return {"off": off_npu(rank), "on": on_npu(rank)}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each rank got."""
    return gloo_ranks.run(both, RANKS, tmp_path_factory.mktemp("gloo"))


def test_hccl_groups_get_options_and_gloo_groups_none(answers) -> None:
    """Without a vLLM configuration, which the size of "dp" needed once."""
    for answer in answers:
        assert answer["on"]["seen"] == [
            {"hccl_buffer_size": 200},
            {"hccl_buffer_size": 50},
            {"hccl_buffer_size": 100},
            "Options",  # untouched
        ]
        assert answer["off"]["config"] is None


def test_gloo_groups_of_other_platforms_are_as_they_were(answers) -> None:
    for rank, answer in enumerate(answers):
        off = answer["off"]
        assert off["options"] == [None] * 8
        assert off["total"] == 2
        cuda = f"cuda:{rank}"
        assert off["devices"] == {"cpu": "cpu", "cuda": cuda, "rocm": cuda, "xpu": f"xpu:{rank}"}


def test_device_is_one_and_that_of_rank_0_is_not_mistaken_for_the_cpu(answers) -> None:
    for rank, answer in enumerate(answers):
        assert answer["on"]["devices"] == [f"device(type='npu', index={rank})"] * 2


def test_all_to_all_of_a_group(answers) -> None:
    first, second = (answer["on"] for answer in answers)
    assert first["default"] == [[0, 1, 100, 101], [2, 3, 102, 103]]
    assert second["default"] == [[4, 5, 104, 105], [6, 7, 106, 107]]
    assert first["sizes"] == [[0, 1, 100, 101], [2, 3, 102, 103], [4, 5, 104, 105]]
    assert second["sizes"] == [[6, 7, 106, 107]]
    assert first["back"] and second["back"]
    assert first["calls"] == second["calls"] == 4  # one for each exchange, none for an error


def test_what_cannot_be_cut_is_an_error_on_every_rank(answers) -> None:
    both = "all_to_all takes both scatter_sizes and gather_sizes, or neither"
    for answer in answers:
        assert answer["on"]["errors"] == [
            "all_to_all without sizes cannot cut 5 into 2 equal pieces",
            both,
            both,
        ]


def bare(**attributes: object) -> GroupCoordinator:
    made = GroupCoordinator.__new__(GroupCoordinator)
    vars(made).update({"world_size": 2, "device_communicator": None, **attributes})
    return made


def test_one_rank_keeps_its_tensor() -> None:
    tensor = torch.zeros(3)
    assert bare(world_size=1).all_to_all(tensor, 5, 7) is tensor


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ((2, 0), r"^Invalid scatter dim \(2\) for input tensor with shape torch.Size\(\[4, 2\]\)"),
        ((-3, 0), r"^Invalid scatter dim \(-3\)"),
        ((0, 2), r"^Invalid gather dim \(2\)"),
        ((0, -3), r"^Invalid gather dim \(-3\)"),
    ],
)
def test_dimensions_are_checked_before_anything_else(dims: tuple[int, int], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        bare().all_to_all(torch.zeros(4, 2), *dims)


def test_group_without_a_communicator() -> None:
    with pytest.raises(ValueError, match=r"^No device communicator found$"):
        bare().all_to_all(torch.zeros(4, 2))


def test_communicator_of_a_platform_may_do_it_otherwise() -> None:
    calls = []
    stub = SimpleNamespace(all_to_all=lambda *a: calls.append(a) or "done")
    tensor = torch.zeros(4, 2)
    assert bare(device_communicator=stub).all_to_all(tensor, 0, -2, [3, 1], [2, 2]) == "done"
    assert calls == [(tensor, 0, -2, [3, 1], [2, 2])]


def test_class_is_the_one_that_others_imported() -> None:
    """A class put in its place would have been unknown to these."""
    assert stateless_coordinator.StatelessGroupCoordinator.__mro__[1] is GroupCoordinator
    assert stateless_coordinator.GroupCoordinator is common.GroupCoordinator is GroupCoordinator
    assert "all_to_all" in vars(GroupCoordinator)
    assert "all_to_all" in vars(DeviceCommunicatorBase)
