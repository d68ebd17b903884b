"""Choose the causal convolutions of Mamba-like layers at each call.

The Triton kernels have a program for every 8 tokens and 256 channels, or for
each sequence and 256 channels, which triton-ascend refuses above 65,535
(16,380 tokens, or 2,048 sequences, of 8,192 channels). They keep models from
a CPU, where there is no Triton.

The decorators choose by the device of the tokens: on an NPU the kernels of
`ascend_runtime`, or plain torch where there is no Triton or states of prefix
caching are asked for; on a CPU plain torch; elsewhere, and wherever torch is
built for a GPU, these functions as they are. All Mamba layers, the gated
delta nets and KDA import them.

Plain torch keeps the states of prefix caching where vLLM's kernel errs: in
calls shorter than the history, in calls of up to eight tokens, and where a
block ends within the first tokens of a call.

Known limits: the kernels are launched three times a call, for histories,
tokens and states.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

OPS = "vllm/model_executor/layers/mamba/ops/causal_conv1d.py"

TRANSFORM = Transform(
    seed="worker/4",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(OPS, name).do(add_decorator(f'ascend_runtime.dispatch.op("conv.{name}")'))
        for name in ("causal_conv1d_fn", "causal_conv1d_update")
    ],
    examples=[
        Example(
            OPS,
            before="""\
def _causal_conv1d_fwd_kernel(x):
    pass


def causal_conv1d_fn(x):
    return _causal_conv1d_fwd_kernel(x)


def causal_conv1d_update(x):
    return x
""",
            after="""\
import ascend_runtime.dispatch


def _causal_conv1d_fwd_kernel(x):
    pass


@ascend_runtime.dispatch.op("conv.causal_conv1d_fn")
def causal_conv1d_fn(x):
    return _causal_conv1d_fwd_kernel(x)


@ascend_runtime.dispatch.op("conv.causal_conv1d_update")
def causal_conv1d_update(x):
    return x
""",
        ),
    ],
)
