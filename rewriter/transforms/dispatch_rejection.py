"""Choose the kernels of the rejection sampler at each call.

The four Triton kernels launch a program for each request or draft token,
which triton-ascend refuses above 65,535, and the one that draws recovered
tokens holds more than an Ascend vector core has room for. They also keep the
sampler from running on a CPU, where there is no Triton.

The decorator chooses by the device of the tensors: on an NPU the kernels of
`ascend_runtime`, or plain torch where there is no Triton; on a CPU plain
torch; elsewhere, and wherever torch is built for a GPU, the kernels as they
are. The host functions stay as they are, and with them the order in which
random numbers are drawn, so that seeded requests are reproducible.

Known limits: on an NPU uniform numbers are taken as float32, kept off 0 and
1. Verification of a whole block of drafts is not offered: the known way of
doing it changes the distribution of the tokens.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

SAMPLER = "vllm/v1/sample/rejection_sampler.py"


def choose(operation: str) -> str:
    """The decorator for a kernel."""
    return f'ascend_runtime.dispatch.kernel("rejection.{operation}")'


TRANSFORM = Transform(
    seed="worker/6",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(SAMPLER, "rejection_greedy_sample_kernel").do(add_decorator(choose("greedy"))),
        In(SAMPLER, "rejection_random_sample_kernel").do(add_decorator(choose("random"))),
        In(SAMPLER, "expand_kernel").do(add_decorator(choose("expand"))),
        In(SAMPLER, "sample_recovered_tokens_kernel").do(add_decorator(choose("recover"))),
    ],
    examples=[
        Example(
            SAMPLER,
            before="""\
@triton.jit(do_not_specialize=["max_spec_len"])
def rejection_greedy_sample_kernel(output):
    pass


@triton.jit(do_not_specialize=["max_spec_len"])
def rejection_random_sample_kernel(output):
    pass


@triton.jit
def expand_kernel(output):
    pass


@triton.jit
def another_kernel(output):
    pass


@triton.jit
def sample_recovered_tokens_kernel(output):
    pass
""",
            after="""\
import ascend_runtime.dispatch


@ascend_runtime.dispatch.kernel("rejection.greedy")
@triton.jit(do_not_specialize=["max_spec_len"])
def rejection_greedy_sample_kernel(output):
    pass


@ascend_runtime.dispatch.kernel("rejection.random")
@triton.jit(do_not_specialize=["max_spec_len"])
def rejection_random_sample_kernel(output):
    pass


@ascend_runtime.dispatch.kernel("rejection.expand")
@triton.jit
def expand_kernel(output):
    pass


@triton.jit
def another_kernel(output):
    pass


@ascend_runtime.dispatch.kernel("rejection.recover")
@triton.jit
def sample_recovered_tokens_kernel(output):
    pass
""",
        ),
    ],
)
