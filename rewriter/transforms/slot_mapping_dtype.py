"""Keep KV cache slots in the integers that the device takes.

The operator that writes to the KV cache on NPUs takes int32 slots, and
vLLM's buffer has int64, so every layer would convert. The buffer has the
dtype of `ascend_runtime.attn.slot_mapping_dtype` now: int32 on NPUs, int64
elsewhere. vLLM's kernel computes slots in integers and stores them in the
type of the buffer, so they stay exact up to 2**31 slots; it reads no block
beyond a request's own.
"""

from rewriter.edits import In, set_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/gpu/block_table.py"

TRANSFORM = Transform(
    seed="worker/25",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the dtype is that of an Ascend operator"),
    remove_when="the operator takes int64, or vLLM asks the attention backend",
    edits=[
        In(FILE, "BlockTables.__init__").do(
            set_keyword(
                "torch.zeros(...)",
                was="torch.int64",
                dtype="ascend_runtime.attn.slot_mapping_dtype()",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


class BlockTables:
    def __init__(self, strides, groups):
        self.block_table_strides = torch.tensor(strides, dtype=torch.int64)
        self.slot_mappings = torch.zeros(groups, dtype=torch.int64)
""",
            after="""\
import ascend_runtime.attn
import torch


class BlockTables:
    def __init__(self, strides, groups):
        self.block_table_strides = torch.tensor(strides, dtype=torch.int64)
        self.slot_mappings = torch.zeros(
            groups, dtype=ascend_runtime.attn.slot_mapping_dtype()
        )
""",
        ),
        Example(
            FILE,
            before="""\
class BlockTables:
    def __init__(self, strides, groups):
        self.slot_mappings = torch.zeros(groups, dtype=torch.int32)
""",
            after=None,
        ),
    ],
)
