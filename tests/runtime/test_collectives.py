"""all_reduce and broadcast made from all_gather, on four gloo ranks."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gloo_ranks
import pytest
import torch
import torch.distributed as dist

from ascend_runtime import collectives

RANKS = 4
FORCE = "ASCEND_RUNTIME_FORCE_310P"
Case = Callable[[int, dict], object]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Run by every rank, with its number and the groups; tests look at what the ranks return."""
    CASES[function.__name__] = function
    return function


def make_groups(rank: int, store: Path) -> dict[str, dist.ProcessGroup]:
    """Every rank takes part in making each group."""
    stateless = dist.ProcessGroupGloo(dist.FileStore(str(store), RANKS), rank, RANKS)
    return {
        "2,3": dist.new_group([2, 3]),
        "0,2": dist.new_group([0, 2]),
        "stateless": stateless,
    }


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list]:
    """`outcome(case)`: what each rank returned, in their order."""
    folder = tmp_path_factory.mktemp("gloo")

    def run_cases(rank: int) -> dict[str, object]:
        groups = make_groups(rank, folder / "stateless")
        answers = {}
        for name, function in CASES.items():
            try:
                answers[name] = function(rank, groups)
            except Exception:
                answers[name] = traceback.format_exc()
            dist.barrier()
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCE, "1")
        answers = gloo_ranks.run(run_cases, RANKS, folder)
    return lambda name: [answer[name] for answer in answers]


def reduced(rank: int, op: dist.ReduceOp.RedOpType, shape: tuple[int, ...] = (1,)) -> object:
    tensor = torch.full(shape, rank + 1, dtype=torch.int64)
    returned = collectives.all_reduce(tensor, op)
    return tensor.tolist(), returned


@case
def all_sum(rank, groups):
    return reduced(rank, dist.ReduceOp.SUM)


@case
def all_max(rank, groups):
    return reduced(rank, dist.ReduceOp.MAX)


@case
def all_min(rank, groups):
    return reduced(rank, dist.ReduceOp.MIN)


@case
def all_product(rank, groups):
    return reduced(rank, dist.ReduceOp.PRODUCT)


@pytest.mark.parametrize(
    ("name", "result"), [("all_sum", 10), ("all_max", 4), ("all_min", 1), ("all_product", 24)]
)
def test_int64_is_reduced_in_the_argument(outcome, name: str, result: int) -> None:
    assert outcome(name) == [([result], None)] * RANKS


@case
def two_dimensions(rank, groups):
    return reduced(rank, dist.ReduceOp.SUM, (2, 3))


def test_shape_is_kept(outcome) -> None:
    assert outcome("two_dimensions") == [([[10] * 3] * 2, None)] * RANKS


@case
def transposed(rank, groups):
    base = torch.arange(6, dtype=torch.int64).view(2, 3) * (rank + 1)
    tensor = base.t()
    assert not tensor.is_contiguous()
    collectives.all_reduce(tensor)
    return base.tolist()


def test_tensor_that_is_not_contiguous(outcome) -> None:
    assert outcome("transposed") == [[[0, 10, 20], [30, 40, 50]]] * RANKS


@case
def past_the_mantissa(rank, groups):
    tensor = torch.tensor([2**53 + rank, -(2**62) + rank])
    collectives.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def test_int64_keeps_its_digits(outcome) -> None:
    assert outcome("past_the_mantissa") == [[2**53 + 3, -(2**62) + 3]] * RANKS


@case
def later(rank, groups):
    tensor = torch.tensor([rank + 1])
    handle = collectives.all_reduce(tensor, async_op=True)
    waited = handle.wait()
    again = handle.wait(), handle.is_completed()  # must not reduce a second time
    return tensor.tolist(), waited, again


def test_handle_of_a_reduction(outcome) -> None:
    assert outcome("later") == [([10], True, (True, True))] * RANKS


@case
def polled(rank, groups):
    tensor = torch.tensor([rank + 1])
    handle = collectives.all_reduce(tensor, async_op=True)
    while not handle.is_completed():
        pass
    return tensor.tolist()


def test_completed_means_that_the_result_is_there(outcome) -> None:
    assert outcome("polled") == [[10]] * RANKS


@case
def average(rank, groups):
    try:
        collectives.all_reduce(torch.tensor([rank]), dist.ReduceOp.AVG)
    except NotImplementedError as error:
        return str(error)
    return "no error"


def test_other_operations_are_named(outcome) -> None:
    assert (
        outcome("average")
        == ["all_reduce of int64 with RedOpType.AVG is not supported on 310P"] * RANKS
    )


def sent(rank: int, **arguments: object) -> list[int]:
    tensor = torch.tensor([rank * 10])
    assert collectives.broadcast(tensor, **arguments) is None
    return tensor.tolist()


@case
def world_rank_in_group(rank, groups):
    return sent(rank, src=3, group=groups["2,3"])


def test_source_is_a_rank_of_the_world(outcome) -> None:
    assert outcome("world_rank_in_group") == [[0], [10], [30], [30]]


@case
def world_rank_in_gappy_group(rank, groups):
    return sent(rank, src=2, group=groups["0,2"])


def test_source_in_a_group_with_a_gap(outcome) -> None:
    assert outcome("world_rank_in_gappy_group") == [[20], [10], [20], [30]]


@case
def group_rank(rank, groups):
    return sent(rank, group_src=1, group=groups["2,3"]), sent(rank, group_src=2)


def test_source_is_a_rank_of_the_group(outcome) -> None:
    in_group = [[0], [10], [30], [30]]
    assert outcome("group_rank") == [(value, [20]) for value in in_group]


@case
def no_group(rank, groups):
    return sent(rank, src=1)


def test_source_in_the_world(outcome) -> None:
    assert outcome("no_group") == [[10]] * RANKS


@case
def broadcast_later(rank, groups):
    tensor = torch.full((2, 2), rank, dtype=torch.bfloat16).t()
    handle = collectives.broadcast(tensor, 2, async_op=True)
    handle.wait()
    return tensor.tolist()


def test_handle_of_a_broadcast_of_any_dtype(outcome) -> None:
    assert outcome("broadcast_later") == [[[2.0, 2.0], [2.0, 2.0]]] * RANKS


@case
def sources(rank, groups):
    messages = []
    for arguments in ({}, {"src": 0, "group_src": 0}):
        with pytest.raises(ValueError) as caught:
            collectives.broadcast(torch.zeros(1), **arguments)
        messages.append(str(caught.value))
    return messages


def test_one_source_is_needed(outcome) -> None:
    message = "broadcast takes either src, a rank of the world, or group_src"
    assert outcome("sources") == [[message, message]] * RANKS


@case
def outside(rank, groups):
    """A rank that is not in the group does nothing, with or without a handle."""
    tensor = torch.tensor([rank + 1])
    handle = collectives.all_reduce(tensor, group=groups["0,2"], async_op=True)
    if handle is not None:
        handle.wait()
    return tensor.tolist(), handle is not None


def test_rank_outside_the_group_does_nothing(outcome) -> None:
    assert outcome("outside") == [([4], True), ([2], False), ([4], True), ([4], False)]


@case
def stateless(rank, groups):
    """A group that torch.distributed does not know by name, as vLLM makes them."""
    tensor = torch.tensor([rank + 1])
    collectives.all_reduce(tensor, group=groups["stateless"])
    return tensor.tolist()


def test_stateless_group(outcome) -> None:
    assert outcome("stateless") == [[10]] * RANKS


# The fast path, in this process: what reaches torch.distributed.


@pytest.fixture
def torch_calls(monkeypatch: pytest.MonkeyPatch) -> list:
    calls: list = []
    for name in ("all_reduce", "broadcast", "all_gather"):
        monkeypatch.setattr(dist, name, lambda *a, _n=name: calls.append((_n, *a)))
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1)
    monkeypatch.delenv(FORCE, raising=False)
    monkeypatch.delenv("ASCEND_RUNTIME_SOC", raising=False)
    return calls


def test_other_dtypes_than_int64_are_forwarded_on_310p(monkeypatch, torch_calls) -> None:
    monkeypatch.setenv(FORCE, "1")
    tensor = torch.ones(2, dtype=torch.int32)
    collectives.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    ((name, *arguments),) = torch_calls
    assert name == "all_reduce"
    assert arguments[0] is tensor
    assert arguments[1:] == [dist.ReduceOp.MAX, None, True]


@pytest.mark.parametrize("soc", ["A2", "A3", "A5", "310P", None])
def test_cpu_tensors_are_forwarded_on_every_chip(monkeypatch, torch_calls, soc) -> None:
    if soc:
        monkeypatch.setenv("ASCEND_RUNTIME_SOC", soc)
    tensor = torch.ones(2, dtype=torch.int64)
    collectives.all_reduce(tensor, dist.ReduceOp.MIN)
    collectives.broadcast(tensor, 1, "group", True)
    collectives.broadcast(tensor, group="group", group_src=2)
    assert [call[0] for call in torch_calls] == ["all_reduce", "broadcast", "broadcast"]
    assert all(call[1] is tensor for call in torch_calls)
    assert torch_calls[0][2:] == (dist.ReduceOp.MIN, None, False)
    assert torch_calls[1][2:] == (1, "group", True, None)
    assert torch_calls[2][2:] == (None, "group", False, 2)


@pytest.mark.parametrize(
    ("soc", "reduction", "sending"),
    [("310P", "all_gather", "all_gather"), ("A2", "all_reduce", "broadcast")],
)
def test_device_tensors_take_the_long_way_on_310p_only(
    monkeypatch, torch_calls, soc, reduction, sending
) -> None:
    """`meta` stands for the device: nothing is computed."""
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", soc)
    tensor = torch.ones(2, dtype=torch.int64, device="meta")
    collectives.all_reduce(tensor)
    collectives.broadcast(tensor, 0)
    assert [call[0] for call in torch_calls] == [reduction, sending]


def test_what_torch_returns_is_handed_on(monkeypatch, torch_calls) -> None:
    handle = SimpleNamespace()
    monkeypatch.setattr(dist, "broadcast", lambda *a: handle)
    monkeypatch.setattr(dist, "all_reduce", lambda *a: handle)
    assert collectives.broadcast(torch.zeros(1), 0, async_op=True) is handle
    assert collectives.all_reduce(torch.zeros(1), async_op=True) is handle


def test_gloo_gets_npu_tensors_as_host_tensors(monkeypatch, torch_calls) -> None:
    """The device of type `npu` proves it in whole programs; here, which way is taken."""
    monkeypatch.setattr(collectives, "is_npu", lambda tensor: True)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    tensor = torch.zeros(2)

    def fill(host: torch.Tensor, *rest: object) -> SimpleNamespace:
        torch_calls.append(host.device.type)
        host.fill_(5)
        return SimpleNamespace(wait=lambda: True, is_completed=lambda: True)

    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: self.clone())
    monkeypatch.setattr(dist, "broadcast", fill)
    monkeypatch.setattr(dist, "all_reduce", fill)
    assert collectives.all_reduce(tensor) is None
    assert tensor.tolist() == [5, 5]
    tensor.zero_()
    handle = collectives.broadcast(tensor, 0, async_op=True)
    assert tensor.tolist() == [0, 0]
    handle.wait()
    assert tensor.tolist() == [5, 5]
    assert torch_calls == ["cpu", "cpu"]
