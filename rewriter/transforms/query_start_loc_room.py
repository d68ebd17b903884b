"""Leave room for one more request in the query offsets of an NPU.

Where tokens are padded, attention on NPUs wants the last offset to be the
padded number of tokens, which takes one dummy request more than there can
be real ones. The buffer gets that entry on NPUs
(`ascend_runtime.attn.query_start_loc_extra`); elsewhere it is as long as it
was. The runner copies the offsets of a step over the whole buffer, so its
host array has the buffer's length now.

Known limit: the drafting model's kernel writes as many offsets as before;
its additional entry stays 0, and nobody reads it.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

BATCH = "vllm/v1/worker/gpu/input_batch.py"
RUNNER = "vllm/v1/worker/gpu/model_runner.py"

TRANSFORM = Transform(
    seed="worker/24",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("only attention on Ascend needs the room"),
    remove_when="attention on Ascend takes padded tokens without a dummy request",
    edits=[
        In(BATCH, "InputBuffers.__init__").do(
            replace(
                "max_num_reqs + 1",
                "max_num_reqs + 1 + ascend_runtime.attn.query_start_loc_extra()",
            ),
        ),
        In(RUNNER, "GPUModelRunner.prepare_inputs").do(
            replace(
                "np.empty(self.max_num_reqs + 1, dtype=np.int32)",
                "np.empty(len(self.input_buffers.query_start_loc), dtype=np.int32)",
            ),
        ),
    ],
    examples=[
        Example(
            BATCH,
            before="""\
import torch


class InputBuffers:
    def __init__(self, max_num_reqs, device):
        self.query_start_loc = torch.zeros(
            max_num_reqs + 1, dtype=torch.int32, device=device
        )
        self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
""",
            after="""\
import ascend_runtime.attn
import torch


class InputBuffers:
    def __init__(self, max_num_reqs, device):
        self.query_start_loc = torch.zeros(
            max_num_reqs + 1 + ascend_runtime.attn.query_start_loc_extra(),
            dtype=torch.int32,
            device=device,
        )
        self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
""",
        ),
        Example(
            BATCH,
            before="""\
class InputBuffers:
    def __init__(self, max_num_reqs, device):
        self.query_start_loc = torch.zeros(max_num_reqs, device=device)
""",
            after=None,
        ),
    ],
)
