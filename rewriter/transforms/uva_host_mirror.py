"""Copy host buffers to the device where there is no UVA.

The second model runner writes small arrays on the host (lengths, sampling
parameters, staged writes) and has kernels read them through a UVA view.
Without UVA its buffers cannot even be made. The pool of them takes
`ascend_runtime.uva.HostMirrorBuffer` there: the same host memory, and a
device tensor to which the rows in use are copied, asynchronously and in
stream order, when the kernels get their view. That is one copy of the rows
for each hand-over, and no bookkeeping of writes. The pool rotates as
before, so a step in flight keeps its memory. With UVA nothing changes.

Known limits: a kernel sees what the host wrote before the hand-over, not
after it, which is how every user of the pool writes. A consumer on another
stream would have to wait; there is none. Where UVA is missing for want of
pinned memory (the CPU, WSL) the pool works now, where it raised.
"""

from rewriter.edits import In, add_member, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/gpu/buffer_utils.py"
VIEW = '''

def device_view(self, n: int) -> torch.Tensor:
    """The first `n` rows as the device sees them."""
    return self.uva[:n]
'''
CHOICE = """
make = UvaBuffer if is_uva_available() else ascend_runtime.uva.HostMirrorBuffer
self._uva_bufs = [make(size, dtype) for _ in range(max_concurrency)]
"""

TRANSFORM = Transform(
    seed="worker/13",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("0.30.0 has a buffer class of its own for this (#56908)"),
    remove_when="the base is 0.30.0 or later",
    edits=[
        In(FILE, "UvaBuffer").do(add_member(VIEW)),
        In(FILE, "UvaBufferPool.__init__").do(
            replace(
                "self._uva_bufs = [UvaBuffer(size, dtype) for _ in range(max_concurrency)]",
                CHOICE,
            ),
        ),
        In(FILE, "UvaBufferPool.copy_to_uva").do(replace("buf.uva[:n]", "buf.device_view(n)")),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch

from vllm.utils.platform_utils import is_uva_available


class UvaBuffer:
    def __init__(self, size, dtype):
        self.uva = get_accelerator_view_from_cpu_tensor(self.cpu)


class UvaBufferPool:
    def __init__(self, size, dtype, max_concurrency=2):
        # UVA buffers for concurrency
        self._uva_bufs = [UvaBuffer(size, dtype) for _ in range(max_concurrency)]

    def copy_to_uva(self, x):
        buf = self._uva_bufs[self._curr]
        n = len(x)
        return buf.uva[:n]


class StagedWriteTensor:
    def __init__(self, size, dtype):
        self._uva_buf = UvaBuffer(size, dtype)
""",
            after='''\
import ascend_runtime.uva
import torch

from vllm.utils.platform_utils import is_uva_available


class UvaBuffer:
    def __init__(self, size, dtype):
        self.uva = get_accelerator_view_from_cpu_tensor(self.cpu)

    def device_view(self, n: int) -> torch.Tensor:
        """The first `n` rows as the device sees them."""
        return self.uva[:n]


class UvaBufferPool:
    def __init__(self, size, dtype, max_concurrency=2):
        # UVA buffers for concurrency
        make = UvaBuffer if is_uva_available() else ascend_runtime.uva.HostMirrorBuffer
        self._uva_bufs = [make(size, dtype) for _ in range(max_concurrency)]

    def copy_to_uva(self, x):
        buf = self._uva_bufs[self._curr]
        n = len(x)
        return buf.device_view(n)


class StagedWriteTensor:
    def __init__(self, size, dtype):
        self._uva_buf = UvaBuffer(size, dtype)
''',
        ),
        Example(
            FILE,
            before="""\
class UvaBufferPool:
    def copy_to_uva(self, x):
        return self.buf.uva[: len(x)]
""",
            after=None,
        ),
    ],
)
