"""What vLLM's process groups lack on Ascend: HCCL's options, whole collectives, an all-to-all.

On 310P, HCCL lacks broadcast, and all-reduce for int64. There both are made from `all_gather`, at
the price of as many copies of the tensor as the group has ranks: right for token ids and metadata,
not for weights. Elsewhere the calls go to torch.distributed as they are.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from ascend_runtime.device import is_310p, is_npu

#: MiB of HCCL's buffer for the groups that need little. 50 is the least that HCCL is given; a
#: data-parallel group sends 4 bytes for each of its ranks and one more.
_BUFFERS: Final = {"dp": 50, "dynamic_eplb": 100}
_BUFFER: Final = 200
_REDUCTIONS: dict[ReduceOp.RedOpType, Callable[[torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: lambda stacked: stacked.sum(0),
    # 310P may lack these for int64 as well, so the host does them.
    ReduceOp.MAX: lambda stacked: stacked.cpu().amax(0),
    ReduceOp.MIN: lambda stacked: stacked.cpu().amin(0),
    ReduceOp.PRODUCT: lambda stacked: stacked.cpu().prod(0),
}


def pg_options(group_name: str, backend: str) -> object | None:
    """Return the options of a process group: HCCL's own object, None for every other backend.

    `group_name` is vLLM's name of the group ("tp", "dp", "ep" ...), and it decides the size of
    HCCL's buffer. Groups with "mc2" in their name keep the size in HCCL_BUFFSIZE, which the
    operators that use them divide. `backend` may name several ("cpu:gloo,npu:hccl"). None also
    where torch_npu is not loaded.
    """
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is None or "hccl" not in str(backend).lower():
        return None
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    if "mc2" not in group_name:
        options.hccl_config = {"hccl_buffer_size": _BUFFERS.get(group_name, _BUFFER)}
    return cast("object", options)


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


def all_to_all(
    input_: torch.Tensor,
    group: ProcessGroup | None,
    rank: int,
    world_size: int,
    scatter_dim: int = 0,
    gather_dim: int = -1,
    scatter_sizes: Sequence[int] | None = None,
    gather_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Exchange pieces of a tensor: each rank gets the one of its number from every rank.

    `input_` is cut along `scatter_dim` into `world_size` pieces, of the extents `scatter_sizes` or
    all equal; what comes in is joined along `gather_dim` in the order of the ranks. `gather_sizes`
    are the extents of `gather_dim` in what each rank sends to this one. `rank` is the number within
    the group. The result is contiguous, of the dtype and on the device of `input_`.

    Without sizes all ranks must hold equal shapes, which is not checked. Raises ValueError for one
    list of sizes without the other, for sizes that do not fit `input_`, and, without sizes, for an
    extent that does not divide by `world_size`; nothing has been sent then.
    """
    scatter_dim, gather_dim = scatter_dim % input_.dim(), gather_dim % input_.dim()
    extent = input_.size(scatter_dim)
    if (scatter_sizes is None) != (gather_sizes is None):
        raise ValueError("all_to_all takes both scatter_sizes and gather_sizes, or neither")
    if scatter_sizes is None or gather_sizes is None:
        if extent % world_size:
            raise ValueError(
                f"all_to_all without sizes cannot cut {extent} into {world_size} equal pieces"
            )
        scatter_sizes = [extent // world_size] * world_size
        joined = scatter_sizes[0] if gather_dim == scatter_dim else input_.size(gather_dim)
        gather_sizes = [joined] * world_size
    for name, sizes in (("scatter", scatter_sizes), ("gather", gather_sizes)):
        if len(sizes) != world_size or min(sizes) < 0:
            raise ValueError(
                f"{name}_sizes {list(sizes)} are not the extents of {world_size} ranks"
            )
    if sum(scatter_sizes) != extent:
        raise ValueError(f"scatter_sizes {list(scatter_sizes)} do not add up to {extent}")

    pieces = torch.split(input_, list(scatter_sizes), scatter_dim)
    if pieces[rank].size(gather_dim) != gather_sizes[rank]:
        raise ValueError(
            f"gather_sizes[{rank}] is {gather_sizes[rank]}, but this rank sends itself"
            f" {pieces[rank].size(gather_dim)}"
        )
    shapes = []
    for size in gather_sizes:
        shape = list(pieces[rank].shape)
        shape[gather_dim] = size
        shapes.append(shape)
    received = _exchange(pieces, [math.prod(shape) for shape in shapes], group)
    parts = [part.view(shape) for part, shape in zip(received, shapes, strict=True)]
    return torch.cat(parts, gather_dim).contiguous()


def _exchange(
    pieces: Sequence[torch.Tensor], numbers: list[int], group: ProcessGroup | None
) -> Sequence[torch.Tensor]:
    """Send a piece to each rank, and return the `numbers` of elements of each rank, flat."""
    given = torch.cat([piece.reshape(-1) for piece in pieces])
    staged = given.cpu() if _host_only(given, group) else given
    taken = staged.new_empty(sum(numbers))
    dist.all_to_all_single(taken, staged, numbers, [piece.numel() for piece in pieces], group)
    return torch.split(taken.to(given.device), numbers)


def _lacking(tensor: torch.Tensor) -> bool:
    """Whether HCCL has no such collective; ASCEND_RUNTIME_FORCE_310P=1 says so, for tests."""
    if os.environ.get("ASCEND_RUNTIME_FORCE_310P") == "1":
        return True
    return tensor.device.type != "cpu" and is_310p()


def _host_only(tensor: torch.Tensor, group: ProcessGroup | None) -> bool:
    """Gloo takes no tensors of an NPU."""
    if not is_npu(tensor) or _outside(group):
        return False
    try:
        backend = str(dist.get_backend(group))
    except ValueError:  # a stateless group, which torch.distributed does not know
        backend = cast("ProcessGroup", group).name()
    return backend == "gloo"


def _outside(group: ProcessGroup | None) -> bool:
    """Whether this rank is not in the group, and has nothing to do, as with torch."""
    return cast("object", group) is dist.GroupMember.NON_GROUP_MEMBER


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
    if _outside(group):
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
