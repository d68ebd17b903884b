"""Route collectives of device tensors through what 310P can do.

On Ascend 310P the communication library has no broadcast, and no all-reduce
for int64. The edits exchange the callee at the eleven places where vLLM
broadcasts or reduces tensors on the device: the base device communicator,
`GroupCoordinator`, and the hand-over of sampled tokens between pipeline
stages in both model runners. `ascend_runtime.collectives` makes the missing
calls from an all-gather on 310P, and passes everything else on to
torch.distributed unchanged. Results arrive in the tensor itself, handles of
asynchronous calls can be waited for, and source ranks are those of the
world, as with torch.

Left alone: collectives on CPU groups, which work; communicators of other
platforms; int32 reductions on the device; `broadcast_object_list` on the
device group, which nothing calls.

Known limits: the emulation takes as many copies of a tensor as the group
has ranks. That these two collectives are what 310P lacks is known from
public reports; no 310P was at hand.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

COMMUNICATOR = "vllm/distributed/device_communicators/base_device_communicator.py"
STATE = "vllm/distributed/parallel_state.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
STAGES = "vllm/v1/worker/gpu/pp_utils.py"


def broadcast(arguments: str) -> tuple[str, str]:
    """The call today, and what takes its place."""
    return (
        f"torch.distributed.broadcast({arguments})",
        f"ascend_runtime.collectives.broadcast({arguments})",
    )


TRANSFORM = Transform(
    seed="platform/1",
    tag="Distributed",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the device communicator of a platform should decide"),
    remove_when="HCCL has both collectives on 310P, or 310P is no longer supported",
    monkey_patch_lines=89,
    edits=[
        In(COMMUNICATOR, "DeviceCommunicatorBase.all_reduce").do(
            replace(
                "dist.all_reduce(input_, group=self.device_group)",
                "ascend_runtime.collectives.all_reduce(input_, group=self.device_group)",
            ),
        ),
        In(COMMUNICATOR, "DeviceCommunicatorBase.broadcast").do(
            replace(*broadcast("tensor, self.ranks[src], self.device_group")),
        ),
        In(STATE, "GroupCoordinator.broadcast").do(
            replace(*broadcast("input_, src=self.ranks[src], group=self.device_group")),
        ),
        In(STATE, "GroupCoordinator.broadcast_tensor_dict").do(
            replace(*broadcast("tensor, src=self.ranks[src], group=group, async_op=True"), count=2),
        ),
        In(RUNNER, "GPUModelRunner._pp_broadcast_prev_sampled_token_ids").do(
            replace(*broadcast("sampled_token_ids, src=pp.rank, group=pp.device_group")),
        ),
        In(RUNNER, "GPUModelRunner._pp_receive_prev_sampled_token_ids_to_input_batch").do(
            replace(*broadcast("recv, src=pp.last_rank, group=pp.device_group")),
        ),
        In(STAGES, "pp_broadcast").do(
            replace(
                *broadcast(
                    "sampled_token_ids.contiguous(), src=pp.last_rank, group=pp.device_group"
                )
            ),
            replace(*broadcast("combined, src=pp.last_rank, group=pp.device_group")),
        ),
        In(STAGES, "pp_receive").do(
            replace(*broadcast("sampled_tokens, src=pp.last_rank, group=pp.device_group")),
            replace(*broadcast("combined, src=pp.last_rank, group=pp.device_group")),
        ),
    ],
    examples=[
        Example(
            STATE,
            before="""\
class GroupCoordinator:
    def broadcast(self, input_, src=0):
        torch.distributed.broadcast(
            input_, src=self.ranks[src], group=self.device_group
        )

    def broadcast_object_list(self, obj_list, src=0):
        torch.distributed.broadcast_object_list(
            obj_list, src=self.ranks[src], group=self.device_group
        )

    def broadcast_tensor_dict(self, tensor, src=0):
        if tensor.is_cpu:
            handle = torch.distributed.broadcast(
                tensor, src=self.ranks[src], group=metadata_group, async_op=True
            )
        elif src:
            handle = torch.distributed.broadcast(
                tensor, src=self.ranks[src], group=group, async_op=True
            )
        else:
            handle = torch.distributed.broadcast(
                tensor, src=self.ranks[src], group=group, async_op=True
            )
        return handle
""",
            after="""\
import ascend_runtime.collectives


class GroupCoordinator:
    def broadcast(self, input_, src=0):
        ascend_runtime.collectives.broadcast(
            input_, src=self.ranks[src], group=self.device_group
        )

    def broadcast_object_list(self, obj_list, src=0):
        torch.distributed.broadcast_object_list(
            obj_list, src=self.ranks[src], group=self.device_group
        )

    def broadcast_tensor_dict(self, tensor, src=0):
        if tensor.is_cpu:
            handle = torch.distributed.broadcast(
                tensor, src=self.ranks[src], group=metadata_group, async_op=True
            )
        elif src:
            handle = ascend_runtime.collectives.broadcast(
                tensor, src=self.ranks[src], group=group, async_op=True
            )
        else:
            handle = ascend_runtime.collectives.broadcast(
                tensor, src=self.ranks[src], group=group, async_op=True
            )
        return handle
""",
        ),
        Example(
            COMMUNICATOR,
            before="""\
class DeviceCommunicatorBase:
    def all_reduce(self, input_):
        dist.all_reduce(input_, group=self.cpu_group)
""",
            after=None,
        ),
    ],
)
