"""Choose the norms of gated delta nets at each call.

The host function of the layer norm asks the platform for its number of
compute units, which out-of-tree platforms do not tell, so that it raises on
an NPU. Its kernel has a program for every four rows and group, which
triton-ascend refuses above 65,535 (8,192 tokens of 32 heads), and both norms
are compiled anew for each width. They also keep models from a CPU, where
there is no Triton.

The decorators choose by the device of the tensors: on an NPU the kernels of
`ascend_runtime`, or plain torch where there is no Triton or a group is wider
than a tile; on a CPU plain torch; elsewhere, and wherever torch is built for
a GPU, these functions as they are. All callers of `layernorm_fn` and
`rmsnorm_fn` go through them.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

OPS = "vllm/model_executor/layers/fla/ops"

TRANSFORM = Transform(
    seed="worker/4",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(f"{OPS}/l2norm.py", "l2norm_fwd").do(
            add_decorator('ascend_runtime.dispatch.op("norm.l2norm_fwd")'),
        ),
        In(f"{OPS}/layernorm_guard.py", "layer_norm_fwd").do(
            add_decorator('ascend_runtime.dispatch.op("norm.layer_norm_fwd")'),
        ),
    ],
    examples=[
        Example(
            f"{OPS}/layernorm_guard.py",
            before="""\
def layer_norm_fwd(x):
    return layer_norm_fwd_kernel(x)


@input_guard
def layernorm_fn(x):
    return layer_norm_fwd(x)
""",
            after="""\
import ascend_runtime.dispatch


@ascend_runtime.dispatch.op("norm.layer_norm_fwd")
def layer_norm_fwd(x):
    return layer_norm_fwd_kernel(x)


@input_guard
def layernorm_fn(x):
    return layer_norm_fwd(x)
""",
        ),
    ],
)
