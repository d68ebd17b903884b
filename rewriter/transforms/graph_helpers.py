"""Set streams and capture graphs of the platform's device in runner V2.

The second model runner switches to its copy stream with
`torch.cuda.set_stream`, and records graphs with `torch.cuda.CUDAGraph` and
`torch.cuda.graph`. Unlike the other names, the platform cannot hand these
on as they are: the CPU has no `set_stream`, and each device names the class
of its graphs after itself. Helpers choose. On CUDA and ROCm they call what
was called before, which is also how vLLM keeps track of the current stream.

Known limit: whether a captured graph replays rightly is the device's matter.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

ASYNC = "vllm/v1/worker/gpu/async_utils.py"
GRAPHS = "vllm/v1/worker/gpu/cudagraph_utils.py"

TRANSFORM = Transform(
    seed="worker/15",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("vLLM's platforms should name their graphs"),
    remove_when="the platform has set_stream and a name for its graphs",
    edits=[
        In(ASYNC, "stream").do(
            replace("torch.cuda.set_stream", "ascend_runtime.streams.set_stream", count=2),
        ),
        In(GRAPHS, "CudaGraphManager.capture").do(
            replace("torch.cuda.CUDAGraph()", "ascend_runtime.streams.new_graph()"),
            replace(
                "torch.cuda.graph(graph, self.pool)",
                "ascend_runtime.streams.graph(graph, self.pool)",
            ),
        ),
    ],
    examples=[
        Example(
            ASYNC,
            before="""\
import numpy as np
import torch

from vllm.v1.outputs import LogprobsTensors


@contextlib.contextmanager
def stream(to_stream: torch.cuda.Stream, from_stream: torch.cuda.Stream):
    try:
        torch.cuda.set_stream(to_stream)
        yield
    finally:
        torch.cuda.set_stream(from_stream)
""",
            after="""\
import ascend_runtime.streams
import numpy as np
import torch

from vllm.v1.outputs import LogprobsTensors


@contextlib.contextmanager
def stream(to_stream: torch.cuda.Stream, from_stream: torch.cuda.Stream):
    try:
        ascend_runtime.streams.set_stream(to_stream)
        yield
    finally:
        ascend_runtime.streams.set_stream(from_stream)
""",
        ),
        Example(
            GRAPHS,
            before="""\
class CudaGraphManager:
    def capture(self, pool):
        with torch.cuda.graph(self.graph, pool):
            return self.graph
""",
            after=None,
        ),
    ],
)
