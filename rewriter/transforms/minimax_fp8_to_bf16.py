"""Load fp8 checkpoints of MiniMax-M2 as bf16 on NPUs.

MiniMax-M2 is published in fp8, for which NPUs have no kernels, so the
platform refuses the checkpoint. Once the quantization method is known, and
has been compared with the one that the user asked for, the edit drops it for
this one case: an NPU, a MiniMax-M2 and a checkpoint in fp8. The checkpoint's
`quantization_config` stays, because the weight loader, which turns the fp8
blocks into bf16, knows them by it. Every other model, method and platform
goes on as before; asking for fp8 without a fp8 checkpoint is still refused,
and `--quantization ascend` with one is still a mismatch.
"""

from rewriter.edits import In, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/config/model.py"

TRANSFORM = Transform(
    seed="platform/7",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("what an NPU does with fp8 is no concern of other platforms"),
    remove_when="NPUs compute fp8, or vLLM lets a platform choose another method",
    monkey_patch_lines=282,
    edits=[
        In(FILE, "ModelConfig._verify_quantization").do(
            insert_before(
                """
if self.quantization is not None:
    if self.quantization not in supported_quantization:
        raise ValueError(
            f"Unknown quantization method: {self.quantization}. Must "
            f"be one of {supported_quantization}."
        )
    current_platform.verify_quantization(self.quantization)
""",
                """
self.quantization = ascend_runtime.minimax.effective_quantization(
    self.quantization, self.model_arch_config.model_type, quant_cfg
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
    def _verify_quantization(self):
        supported_quantization = []
        if self.quantization is not None:
            self.quantization = str(self.quantization)
        quant_cfg = self.model_arch_config.quantization_config

        if self.quantization is not None:
            if self.quantization not in supported_quantization:
                raise ValueError(
                    f"Unknown quantization method: {self.quantization}. Must "
                    f"be one of {supported_quantization}."
                )
            current_platform.verify_quantization(self.quantization)
""",
            after="""\
import ascend_runtime.minimax


class ModelConfig:
    def _verify_quantization(self):
        supported_quantization = []
        if self.quantization is not None:
            self.quantization = str(self.quantization)
        quant_cfg = self.model_arch_config.quantization_config

        self.quantization = ascend_runtime.minimax.effective_quantization(
            self.quantization, self.model_arch_config.model_type, quant_cfg
        )
        if self.quantization is not None:
            if self.quantization not in supported_quantization:
                raise ValueError(
                    f"Unknown quantization method: {self.quantization}. Must "
                    f"be one of {supported_quantization}."
                )
            current_platform.verify_quantization(self.quantization)
""",
        ),
        Example(
            FILE,
            before="""\
class ModelConfig:
    def _verify_quantization(self):
        if self.quantization is not None:
            self.quantization = str(self.quantization)
""",
            after=None,
        ),
    ],
)
