"""Choose how the slots of the second model runner are computed.

Its Triton kernel finds the block tables by a table of pointers in unsigned
64-bit numbers, divides in 64 bits, and loads rows without a bound: all of
that is slow or unsafe on an Ascend vector core.

The decorator chooses by the device of the tensors: on an NPU a kernel of
`ascend_runtime`, which gets the tables themselves and works in 32 bits, or
plain torch where there is no Triton; on a CPU plain torch; elsewhere, and
wherever torch is built for a GPU, this method as it is.

Known limits: on an NPU slots must be below 2^31.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

TABLES = "vllm/v1/worker/gpu/block_table.py"

TRANSFORM = Transform(
    seed="worker/25",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernel is for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(TABLES, "BlockTables.compute_slot_mappings").do(
            add_decorator('ascend_runtime.dispatch.op("slots.compute_slot_mappings")'),
        ),
    ],
    examples=[
        Example(
            TABLES,
            before="""\
class BlockTables:
    def compute_slot_mappings(self, positions):
        return self.slot_mappings

    def get_dummy_slot_mappings(self, num_tokens):
        return self.slot_mappings
""",
            after="""\
import ascend_runtime.dispatch


class BlockTables:
    @ascend_runtime.dispatch.op("slots.compute_slot_mappings")
    def compute_slot_mappings(self, positions):
        return self.slot_mappings

    def get_dummy_slot_mappings(self, num_tokens):
        return self.slot_mappings
""",
        ),
    ],
)
