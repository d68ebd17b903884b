"""Give process groups an all-to-all with dimensions and sizes.

vLLM's groups can gather and reduce-scatter, but not exchange: cut a tensor
into a piece for each rank along one dimension, and join what arrives along
another. Sharding the language model head over its own group needs that.
The method checks its dimensions as its siblings do and leaves the work to
the device communicator, so a platform's communicator may have a better one;
the base class calls `ascend_runtime.collectives.all_to_all`. That sends one
flat buffer, which gloo, NCCL and HCCL can all do, and which is faster than
a list of tensors. Nothing in vLLM calls the method yet.

Sizes are given for both dimensions or for neither. Without them a dimension
that does not divide by the number of ranks is an error: equal shapes
everywhere are assumed, and a wrong assumption would be a wrong result or a
hang.
"""

from rewriter.edits import In, add_member
from rewriter.transform import Example, Transform, Upstream

STATE = "vllm/distributed/parallel_state.py"
COMMUNICATOR = "vllm/distributed/device_communicators/base_device_communicator.py"
OF_GROUP = '''

def all_to_all(
    self,
    input_: torch.Tensor,
    scatter_dim: int = 0,
    gather_dim: int = -1,
    scatter_sizes: list[int] | None = None,
    gather_sizes: list[int] | None = None,
) -> torch.Tensor:
    """Send each rank its piece of `scatter_dim`; join what comes in `gather_dim`.

    `scatter_sizes` are the extents of the pieces, `gather_sizes` those of what
    each rank sends; without them all pieces are equal.
    """
    if self.world_size == 1:
        return input_
    for name, dim in (("scatter", scatter_dim), ("gather", gather_dim)):
        assert -input_.dim() <= dim < input_.dim(), (
            f"Invalid {name} dim ({dim}) for input tensor with shape "
            f"{input_.size()}"
        )
    if self.device_communicator is None:
        raise ValueError("No device communicator found")
    return self.device_communicator.all_to_all(
        input_, scatter_dim, gather_dim, scatter_sizes, gather_sizes
    )
'''
OF_COMMUNICATOR = '''

def all_to_all(
    self,
    input_: torch.Tensor,
    scatter_dim: int = 0,
    gather_dim: int = -1,
    scatter_sizes: list[int] | None = None,
    gather_sizes: list[int] | None = None,
) -> torch.Tensor:
    """Exchange pieces of a tensor; see `GroupCoordinator.all_to_all`."""
    return ascend_runtime.collectives.all_to_all(
        input_,
        self.device_group,
        self.rank_in_group,
        self.world_size,
        scatter_dim,
        gather_dim,
        scatter_sizes,
        gather_sizes,
    )
'''

TRANSFORM = Transform(
    seed="worker/1",
    tag="Distributed",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("nothing upstream calls it"),
    remove_when="the Ascend plugin's head does its own exchange",
    edits=[
        In(STATE, "GroupCoordinator").do(add_member(OF_GROUP, after="reduce_scatterv")),
        In(COMMUNICATOR, "DeviceCommunicatorBase").do(
            add_member(OF_COMMUNICATOR, after="reduce_scatterv")
        ),
    ],
    examples=[
        Example(
            COMMUNICATOR,
            before="""\
import torch


class DeviceCommunicatorBase:
    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        raise NotImplementedError

    def gather(self, input_, dst=0, dim=-1):
        pass
""",
            after="""\
import ascend_runtime.collectives
import torch


class DeviceCommunicatorBase:
    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        raise NotImplementedError
"""
            + "".join(f"    {line}".rstrip() + "\n" for line in OF_COMMUNICATOR[1:-1].splitlines())
            + """\

    def gather(self, input_, dst=0, dim=-1):
        pass
""",
        ),
        Example(
            COMMUNICATOR,
            before="""\
class DeviceCommunicatorBase:
    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        raise NotImplementedError

    def all_to_all(self, input_):
        return input_
""",
            after=None,
        ),
    ],
)
