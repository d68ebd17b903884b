"""Choose the recurrent gated delta rule and its gates at each call.

Decoding launches a Triton program for each sequence, head and 32 values, and
the gates one for each token and 8 heads, which triton-ascend refuses above
65,535: 512 sequences of Qwen3-Next, 16,384 tokens. These kernels address in
64 bits, which an Ascend vector core does one number at a time, and they keep
the models from a CPU, where there is no Triton.

The decorators choose by the device of the tensors: on an NPU the kernels of
`ascend_runtime`, plain torch where there is no Triton, or for states in
bfloat16 an operator of torch_npu's; on a CPU plain torch; elsewhere, and
wherever torch is built for a GPU, these functions as they are. Kimi's layers
launch one of the kernels themselves, so it is decorated as well. The states
stay [V, K], as prefill leaves them.

Known limits: a line of the cache of states must be contiguous. torch_npu's
operator takes padding for line 0, vLLM's null block.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

OPS = "vllm/model_executor/layers/fla/ops"
MODELS = "vllm/model_executor/models"


def choose(operation: str, kind: str = "op") -> str:
    """The decorator for a function or a kernel."""
    return f'ascend_runtime.dispatch.{kind}("gdn.{operation}")'


TRANSFORM = Transform(
    seed=("worker/4", "worker/8", "worker/19"),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace its Triton kernels",
    edits=[
        In(f"{OPS}/fused_recurrent.py", "fused_recurrent_gated_delta_rule_fwd_kernel").do(
            add_decorator(choose("fused_recurrent_kernel", "kernel")),
        ),
        In(f"{OPS}/fused_recurrent.py", "fused_recurrent_gated_delta_rule_fwd").do(
            add_decorator(choose("fused_recurrent_fwd")),
        ),
        In(f"{OPS}/fused_recurrent.py", "fused_recurrent_gated_delta_rule_packed_decode").do(
            add_decorator(choose("packed_decode")),
        ),
        In(f"{OPS}/fused_sigmoid_gating.py", "fused_sigmoid_gating_delta_rule_update").do(
            add_decorator(choose("sigmoid_gating_update")),
        ),
        In(f"{MODELS}/qwen3_next.py", "fused_gdn_gating").do(add_decorator(choose("gating"))),
        In(f"{MODELS}/olmo_hybrid.py", "fused_olmo_hybrid_gdn_gating").do(
            add_decorator(choose("olmo_gating")),
        ),
    ],
    examples=[
        Example(
            f"{OPS}/fused_recurrent.py",
            before="""\
from vllm.triton_utils import triton


@triton.heuristics({"IS_VARLEN": lambda args: args["cu_seqlens"] is not None})
@triton.jit(do_not_specialize=["N", "T"])
def fused_recurrent_gated_delta_rule_fwd_kernel(q):
    pass


def fused_recurrent_gated_delta_rule_fwd(q):
    fused_recurrent_gated_delta_rule_fwd_kernel[(1,)](q)


@triton.jit
def fused_recurrent_gated_delta_rule_packed_decode_kernel(q):
    pass


def fused_recurrent_gated_delta_rule_packed_decode(q):
    fused_recurrent_gated_delta_rule_packed_decode_kernel[(1,)](q)


def fused_recurrent_gated_delta_rule(q):
    return fused_recurrent_gated_delta_rule_fwd(q)
""",
            after="""\
import ascend_runtime.dispatch

from vllm.triton_utils import triton


@ascend_runtime.dispatch.kernel("gdn.fused_recurrent_kernel")
@triton.heuristics({"IS_VARLEN": lambda args: args["cu_seqlens"] is not None})
@triton.jit(do_not_specialize=["N", "T"])
def fused_recurrent_gated_delta_rule_fwd_kernel(q):
    pass


@ascend_runtime.dispatch.op("gdn.fused_recurrent_fwd")
def fused_recurrent_gated_delta_rule_fwd(q):
    fused_recurrent_gated_delta_rule_fwd_kernel[(1,)](q)


@triton.jit
def fused_recurrent_gated_delta_rule_packed_decode_kernel(q):
    pass


@ascend_runtime.dispatch.op("gdn.packed_decode")
def fused_recurrent_gated_delta_rule_packed_decode(q):
    fused_recurrent_gated_delta_rule_packed_decode_kernel[(1,)](q)


def fused_recurrent_gated_delta_rule(q):
    return fused_recurrent_gated_delta_rule_fwd(q)
""",
        ),
        Example(
            f"{MODELS}/olmo_hybrid.py",
            before="""\
@triton.jit
def fused_olmo_hybrid_gdn_gating_kernel(a):
    pass


def fused_olmo_hybrid_gdn_gating(a):
    fused_olmo_hybrid_gdn_gating_kernel[(len(a),)](a)
""",
            after="""\
import ascend_runtime.dispatch


@triton.jit
def fused_olmo_hybrid_gdn_gating_kernel(a):
    pass


@ascend_runtime.dispatch.op("gdn.olmo_gating")
def fused_olmo_hybrid_gdn_gating(a):
    fused_olmo_hybrid_gdn_gating_kernel[(len(a),)](a)
""",
        ),
    ],
)
