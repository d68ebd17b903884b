"""Expand HCCL collectives on the vector cores for graphs of MiniMax-M2.

Graphs of MiniMax-M2 on NPUs need collectives that are expanded on the AI
vector cores: HCCL_OP_EXPANSION_MODE=AIV. The edit sets it where the model's
configuration decides about graphs, in the process from which the workers
inherit their environment, unless it is set already (another value is kept,
with a warning) or graphs are switched off by `--enforce-eager`. It does
nothing for other models and platforms.

Known limits: the variable is also set where graphs are switched off in
another way, by `cudagraph_mode=NONE` or by the platform later on, which
does no harm. Ray workers get it only if it is among the variables that are
copied to them.
"""

from rewriter.edits import In, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/config/model.py"

TRANSFORM = Transform(
    seed="platform/7",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the variable is one of Ascend's communication library"),
    remove_when="the platform's check_and_update_config sets the variable",
    monkey_patch_lines=282,
    edits=[
        In(FILE, "ModelConfig._verify_cuda_graph").do(
            insert_before(
                "unsupported_rocm = self.is_encoder_decoder",
                """
ascend_runtime.minimax.ensure_hccl_expansion(
    self.model_arch_config.model_type, self.enforce_eager
)
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class ModelConfig:
    def _verify_cuda_graph(self):
        # not on ROCm
        unsupported_rocm = self.is_encoder_decoder
        return unsupported_rocm
""",
            after="""\
import ascend_runtime.minimax


class ModelConfig:
    def _verify_cuda_graph(self):
        ascend_runtime.minimax.ensure_hccl_expansion(
            self.model_arch_config.model_type, self.enforce_eager
        )
        # not on ROCm
        unsupported_rocm = self.is_encoder_decoder
        return unsupported_rocm
""",
        ),
    ],
)
