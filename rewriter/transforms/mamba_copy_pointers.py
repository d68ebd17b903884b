"""Cast addresses to pointers once in the copy kernel of Mamba states.

The kernel that copies Mamba states adds offsets to an integer address and
casts the sum, a vector of integers, to pointers in every iteration. The
compiler for Ascend aborts on that cast. The edit casts the two addresses
right after they are loaded and adds offsets to pointers from then on, which
is the same on every device. Each copy stays with one program that loads a
whole chunk before it stores it, in ascending order: a state that is moved
down within its own block overlaps itself.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/mamba_utils.py"

TRANSFORM = Transform(
    seed="worker/22",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("0.30.0 casts early too, in a kernel that was written anew"),
    remove_when="the base is 0.30.0 or later",
    edits=[
        In(FILE, "batch_memcpy_kernel").do(
            replace(
                "src_ptr = tl.load(src_ptrs + pid)",
                "src_ptr = tl.load(src_ptrs + pid).to(tl.pointer_type(tl.uint8))",
            ),
            replace(
                "dst_ptr = tl.load(dst_ptrs + pid)",
                "dst_ptr = tl.load(dst_ptrs + pid).to(tl.pointer_type(tl.uint8))",
            ),
            replace(
                "(src_ptr + i + offsets).to(tl.pointer_type(tl.uint8))", "src_ptr + i + offsets"
            ),
            replace(
                "(dst_ptr + i + offsets).to(tl.pointer_type(tl.uint8))", "dst_ptr + i + offsets"
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
from vllm.triton_utils import tl, triton


@triton.jit
def batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(0)

    src_ptr = tl.load(src_ptrs + pid)
    dst_ptr = tl.load(dst_ptrs + pid)
    size = tl.load(sizes + pid)

    offsets = tl.arange(0, BLOCK_SIZE)
    for i in range(0, size, BLOCK_SIZE):
        curr_src_ptr = (src_ptr + i + offsets).to(tl.pointer_type(tl.uint8))
        curr_dst_ptr = (dst_ptr + i + offsets).to(tl.pointer_type(tl.uint8))
""",
            after="""\
from vllm.triton_utils import tl, triton


@triton.jit
def batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(0)

    src_ptr = tl.load(src_ptrs + pid).to(tl.pointer_type(tl.uint8))
    dst_ptr = tl.load(dst_ptrs + pid).to(tl.pointer_type(tl.uint8))
    size = tl.load(sizes + pid)

    offsets = tl.arange(0, BLOCK_SIZE)
    for i in range(0, size, BLOCK_SIZE):
        curr_src_ptr = src_ptr + i + offsets
        curr_dst_ptr = dst_ptr + i + offsets
""",
        ),
        Example(
            FILE,
            before="""\
@triton.jit
def batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes, BLOCK_SIZE: tl.constexpr):
    src_ptr = tl.load(src_ptrs + tl.program_id(0)).to(tl.pointer_type(tl.int64))
""",
            after=None,
        ),
    ],
)
