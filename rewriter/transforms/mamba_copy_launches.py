"""Copy Mamba states in chunks and launches that suit an NPU.

The kernel that copies Mamba states moves 1024 bytes in an iteration, little
for an NPU's vector unit, and has one program for each copy, of which
Ascend's launcher takes 65535 in all: 1024 requests with 48 layers of two
states each are 98304. The edit asks `ascend_runtime.mamba_copy` for the
size of a chunk and for the slices of the batch that each get a launch. Off
NPUs those are 1024 bytes and the whole batch.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/mamba_utils.py"
BEFORE = """
grid = (batch,)
BLOCK_SIZE = 1024
batch_memcpy_kernel[grid](src_ptrs, dst_ptrs, sizes, BLOCK_SIZE=BLOCK_SIZE)
"""
AFTER = """
BLOCK_SIZE = ascend_runtime.mamba_copy.block_size()
for part in ascend_runtime.mamba_copy.launches(batch):
    grid = (part.stop - part.start,)
    batch_memcpy_kernel[grid](
        src_ptrs[part], dst_ptrs[part], sizes[part], BLOCK_SIZE=BLOCK_SIZE
    )
"""

TRANSFORM = Transform(
    seed="worker/22",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("both numbers are those of an NPU"),
    remove_when="the copy is an operator of the platform",
    edits=[In(FILE, "batch_memcpy").do(replace(BEFORE, AFTER))],
    examples=[
        Example(
            FILE,
            before="""\
def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    batch = src_ptrs.shape[0]

    grid = (batch,)
    BLOCK_SIZE = 1024
    batch_memcpy_kernel[grid](src_ptrs, dst_ptrs, sizes, BLOCK_SIZE=BLOCK_SIZE)
""",
            after="""\
import ascend_runtime.mamba_copy


def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    batch = src_ptrs.shape[0]

    BLOCK_SIZE = ascend_runtime.mamba_copy.block_size()
    for part in ascend_runtime.mamba_copy.launches(batch):
        grid = (part.stop - part.start,)
        batch_memcpy_kernel[grid](
            src_ptrs[part], dst_ptrs[part], sizes[part], BLOCK_SIZE=BLOCK_SIZE
        )
""",
        ),
        Example(
            FILE,
            before="""\
def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    grid = (src_ptrs.shape[0],)
    BLOCK_SIZE = 4096
    batch_memcpy_kernel[grid](src_ptrs, dst_ptrs, sizes, BLOCK_SIZE=BLOCK_SIZE)
""",
            after=None,
        ),
    ],
)
