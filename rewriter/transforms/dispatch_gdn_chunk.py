"""Choose the chunked gated delta rule at each call.

Two of the Triton kernels of the rule, the products of keys and the outputs,
hold more than three times what an Ascend vector core has room for, so the
rule does not compile there. Its launches also grow with heads and chunks,
and triton-ascend refuses one of more than 65,535 programs: for the outputs
that is 65,536 tokens of 32 heads. Where there is no Triton, the rule does
not run at all.

The decorator chooses by the device of the tensors: on an NPU the kernels of
`ascend_runtime`, or plain torch where there is no Triton; on a CPU plain
torch; elsewhere, and wherever torch is built for a GPU, the rule as it is.
The layout of the state is vLLM's, [V, K], and the chunks that the metadata
brings (`gdn_chunk_metadata`) are used. It is the definition that is
decorated, so every importer has it.

Known limits: keys have at most 256 elements, as in vLLM. States and gates
whose shape does not fit are refused, where vLLM reads past them; the
warning that a batch has fewer tokens than heads, which a short prompt sets
off, is not given. FlashInfer's rule and that of Kimi Linear are others, and
stay as they are.
"""

from rewriter.edits import In, add_decorator
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/layers/fla/ops/chunk.py"

TRANSFORM = Transform(
    seed="worker/4",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace the rule",
    edits=[
        In(FILE, "chunk_gated_delta_rule").do(
            add_decorator('ascend_runtime.dispatch.op("gdn.chunk_gated_delta_rule")')
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


def chunk_gated_delta_rule_fwd(q):
    return q


@torch.compiler.disable
def chunk_gated_delta_rule(q):
    return chunk_gated_delta_rule_fwd(q)
""",
            after="""\
import ascend_runtime.dispatch
import torch


def chunk_gated_delta_rule_fwd(q):
    return q


@ascend_runtime.dispatch.op("gdn.chunk_gated_delta_rule")
@torch.compiler.disable
def chunk_gated_delta_rule(q):
    return chunk_gated_delta_rule_fwd(q)
""",
        ),
        Example(
            FILE,
            before="""\
class Rule:
    @staticmethod
    def chunk_gated_delta_rule(q):
        return q
""",
            after=None,
        ),
    ],
)
