"""Choose how logits are cut to top-k and top-p at each call.

From eight rows on vLLM takes a Triton kernel if there is Triton. Its host
function asks the platform for its number of compute units, which out-of-tree
platforms do not tell, so that it raises on an NPU; and triton-ascend cannot
compile the kernel.

The decorator chooses by the device of the logits: on an NPU the plugin's
operator where it is loaded and fits, or plain torch; on a CPU plain torch;
elsewhere, and wherever torch is built for a GPU, this function as it is. Both
model runners go through it; paths of FlashInfer and aiter do not.

Known limits: the plugin's operator has no public schema; it awaits a run on
an NPU.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

SAMPLER = "vllm/v1/sample/ops/topk_topp_sampler.py"

TRANSFORM = Transform(
    seed="worker/6",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the operator is of an Ascend plugin"),
    remove_when="vLLM lets a platform replace its top-k and top-p",
    edits=[
        In(SAMPLER, "apply_top_k_top_p").do(
            add_decorator('ascend_runtime.dispatch.op("sampling.apply_top_k_top_p")'),
        ),
    ],
    examples=[
        Example(
            SAMPLER,
            before="""\
def apply_top_k_top_p(logits, k, p):
    return logits


def apply_top_k_top_p_pytorch(logits, k, p):
    return logits
""",
            after="""\
import ascend_runtime.dispatch


@ascend_runtime.dispatch.op("sampling.apply_top_k_top_p")
def apply_top_k_top_p(logits, k, p):
    return logits


def apply_top_k_top_p_pytorch(logits, k, p):
    return logits
""",
        ),
    ],
)
