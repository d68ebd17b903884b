"""`all_reduce` and `broadcast` of torch.distributed, for devices on which they are not whole.

On 310P, HCCL lacks broadcast, and all-reduce for int64. There both are made from `all_gather`, at
the price of as many copies of the tensor as the group has ranks: right for token ids and metadata,
not for weights. Elsewhere the calls go to torch.distributed as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from ascend_runtime.device import is_310p, is_npu

_REDUCTIONS: dict[ReduceOp.RedOpType, Callable[[torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: lambda stacked: stacked.sum(0),
    # 310P may lack these for int64 as well, so the host does them.
    ReduceOp.MAX: lambda stacked: stacked.cpu().amax(0),
    ReduceOp.MIN: lambda stacked: stacked.cpu().amin(0),
    ReduceOp.PRODUCT: lambda stacked: stacked.cpu().prod(0),
}


class Work(Protocol):
    """What the asynchronous calls return: a part of torch.distributed.Work."""

    def wait(self) -> bool:
        """Wait until the result is in the tensor."""

    def is_completed(self) -> bool:
        """Whether the result is in the tensor."""


class _Finished:
    """A collective whose result is elsewhere at first: `finish` puts it into the tensor."""

    def __init__(self, work: Work, finish: Callable[[], object]) -> None:
        self._work = work
        self._finish: Callable[[], object] | None = finish

    def wait(self) -> bool:
        self._work.wait()
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed() and self.wait()


def all_reduce(
    tensor: torch.Tensor,
    op: ReduceOp.RedOpType = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce a tensor of any shape over the group, in place, as torch.distributed does.

    On 310P, int64 tensors take SUM, MAX, MIN and PRODUCT; another operation raises
    NotImplementedError. Returns None, or with `async_op` a handle to wait for.
    """
    if _host_only(tensor, group):
        return _through_host(tensor, async_op, lambda t: dist.all_reduce(t, op, group, async_op))
    if tensor.dtype != torch.int64 or not _lacking(tensor):
        return _work(dist.all_reduce(tensor, op, group, async_op))
    reduction = next((f for known, f in _REDUCTIONS.items() if known == op), None)
    if reduction is None:
        raise NotImplementedError(f"all_reduce of int64 with {op} is not supported on 310P")
    return _gathered(tensor, group, async_op, lambda parts: reduction(torch.stack(parts)))


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send a tensor of any shape from one rank to all of the group, in place.

    The rank is either `src`, of the world, or `group_src`, within the group, as with
    torch.distributed (ValueError for both or neither). Returns None, or with `async_op` a handle to
    wait for.
    """

    def forward(t: torch.Tensor) -> object:
        return dist.broadcast(t, src, group, async_op, group_src)

    if _host_only(tensor, group):
        return _through_host(tensor, async_op, forward)
    if not _lacking(tensor):
        return _work(forward(tensor))
    if (src is None) == (group_src is None):
        raise ValueError("broadcast takes either src, a rank of the world, or group_src")

    def sent(parts: list[torch.Tensor]) -> torch.Tensor:
        root = group_src
        if src is not None:
            root = src if group is None else dist.get_group_rank(group, src)
        return parts[cast("int", root)]

    return _gathered(tensor, group, async_op, sent)


def _lacking(tensor: torch.Tensor) -> bool:
    """Whether HCCL has no such collective; ASCEND_RUNTIME_FORCE_310P=1 says so, for tests."""
    if os.environ.get("ASCEND_RUNTIME_FORCE_310P") == "1":
        return True
    return tensor.device.type != "cpu" and is_310p()


def _host_only(tensor: torch.Tensor, group: ProcessGroup | None) -> bool:
    """Gloo takes no tensors of an NPU."""
    return is_npu(tensor) and dist.get_backend(group) == "gloo"


def _through_host(
    tensor: torch.Tensor, async_op: bool, start: Callable[[torch.Tensor], object]
) -> Work | None:
    host = tensor.cpu()
    return _settled(_work(start(host)), async_op, lambda: tensor.copy_(host))


def _gathered(
    tensor: torch.Tensor,
    group: ProcessGroup | None,
    async_op: bool,
    combine: Callable[[list[torch.Tensor]], torch.Tensor],
) -> Work | None:
    if cast("object", group) is dist.GroupMember.NON_GROUP_MEMBER:  # nothing to do, as with torch
        return None
    mine = tensor.contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    work = _work(dist.all_gather(parts, mine, group, async_op))
    return _settled(work, async_op, lambda: tensor.copy_(combine(parts)))


def _settled(work: Work | None, async_op: bool, finish: Callable[[], object]) -> Work | None:
    if async_op:
        return None if work is None else _Finished(work, finish)
    finish()
    return None


def _work(result: object) -> Work | None:
    """What torch.distributed returns has no type."""
    return cast("Work | None", result)
