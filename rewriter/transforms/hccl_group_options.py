"""Give HCCL groups communication buffers of their own size.

HCCL reserves a buffer for each process group, of the one size that
HCCL_BUFFSIZE names, where groups need different ones: the data-parallel
group sends a few bytes, the groups of dynamic expert balancing less than
the rest, and those of the fused dispatch operators ("mc2") divide a space
that they size by themselves. vLLM makes every device group in one call,
without options. The edit passes `ascend_runtime.collectives.pg_options`,
which is None for every backend but HCCL, as if nothing had been passed.

`GroupCoordinator` stays the class that it was, so subclasses and modules
that imported it early have the edit, and only the `gloo` groups are left
without options. No vLLM configuration is needed to make a group.

Known limit: groups that are made without a coordinator (the default group,
the stateless groups of elastic expert parallelism) get no options.
"""

from rewriter.edits import In, add_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/distributed/parallel_state.py"

TRANSFORM = Transform(
    seed="worker/1",
    tag="Distributed",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the sizes are HCCL's"),
    remove_when="vLLM asks the platform for the options of a process group",
    edits=[
        In(FILE, "GroupCoordinator.__init__").do(
            add_keyword(
                "torch.distributed.new_group(ranks, backend=torch_distributed_backend)",
                pg_options=(
                    "ascend_runtime.collectives.pg_options(group_name, torch_distributed_backend)"
                ),
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


class GroupCoordinator:
    def __init__(self, group_ranks, torch_distributed_backend, group_name):
        for ranks in group_ranks:
            device_group = torch.distributed.new_group(
                ranks, backend=torch_distributed_backend
            )
            cpu_group = torch.distributed.new_group(ranks, backend="gloo")
""",
            after="""\
import ascend_runtime.collectives
import torch


class GroupCoordinator:
    def __init__(self, group_ranks, torch_distributed_backend, group_name):
        for ranks in group_ranks:
            device_group = torch.distributed.new_group(
                ranks,
                backend=torch_distributed_backend,
                pg_options=ascend_runtime.collectives.pg_options(
                    group_name, torch_distributed_backend
                ),
            )
            cpu_group = torch.distributed.new_group(ranks, backend="gloo")
""",
        ),
        Example(
            FILE,
            before="""\
class GroupCoordinator:
    def __init__(self, ranks):
        self.cpu_group = torch.distributed.new_group(ranks, backend="gloo")
""",
            after=None,
        ),
    ],
)
