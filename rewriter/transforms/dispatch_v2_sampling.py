"""Choose the sampling kernels of the second model runner at each call.

Its Triton kernels launch a program for each row and block of the vocabulary,
which triton-ascend refuses above 65,535 (440 rows of 151,936 tokens), and
some do not compile there: it has no 64-bit random numbers for the Gumbel
noise, and no chains of three conditions in the penalties. They also keep the
runner from a CPU, where there is no Triton.

The decorators stand at the definitions, so that all who import the names have
them: drawing with Gumbel noise, temperature, log-probabilities, ranks,
penalties, and the update of the requests' states. They choose by the device
of the tensors: on an NPU the kernels of `ascend_runtime`, or plain torch
where there is no Triton; on a CPU plain torch; elsewhere, and wherever torch
is built for a GPU, vLLM's own code.

Known limits: the noise of a seed is not that of CUDA: it is Philox-4x32 with
a 32-bit position. Kernels that already fit are left alone.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

SAMPLE = "vllm/v1/worker/gpu/sample"
BATCH = "vllm/v1/worker/gpu/input_batch.py"


def choose(operation: str, kind: str = "op") -> str:
    """The decorator for a host function, or a kernel."""
    return f'ascend_runtime.dispatch.{kind}("sampling.{operation}")'


TRANSFORM = Transform(
    seed=["worker/4", "worker/26"],
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(f"{SAMPLE}/gumbel.py", "apply_temperature").do(
            add_decorator(choose("apply_temperature"))
        ),
        In(f"{SAMPLE}/gumbel.py", "gumbel_sample").do(add_decorator(choose("gumbel_sample"))),
        In(f"{SAMPLE}/logprob.py", "_ranks_kernel").do(add_decorator(choose("ranks", "kernel"))),
        In(f"{SAMPLE}/logprob.py", "compute_token_logprobs").do(
            add_decorator(choose("token_logprobs"))
        ),
        In(f"{SAMPLE}/penalties.py", "apply_penalties").do(
            add_decorator(choose("apply_penalties"))
        ),
        In(BATCH, "post_update").do(add_decorator(choose("post_update"))),
    ],
    examples=[
        Example(
            f"{SAMPLE}/penalties.py",
            before="""\
class PenaltiesState:
    def apply_penalties(self, logits):
        apply_penalties(logits)


def apply_penalties(logits):
    pass


def bincount(tokens):
    pass
""",
            after="""\
import ascend_runtime.dispatch


class PenaltiesState:
    def apply_penalties(self, logits):
        apply_penalties(logits)


@ascend_runtime.dispatch.op("sampling.apply_penalties")
def apply_penalties(logits):
    pass


def bincount(tokens):
    pass
""",
        ),
        Example(
            BATCH,
            before="""\
def post_update(states):
    pass


def post_update_pool(states):
    pass
""",
            after="""\
import ascend_runtime.dispatch


@ascend_runtime.dispatch.op("sampling.post_update")
def post_update(states):
    pass


def post_update_pool(states):
    pass
""",
        ),
    ],
)
