"""Import the fusion passes in a build without compiled operators.

The fusion passes look up operators of `vllm._C` while they are imported, so
the import fails where the extension is absent, as on NPUs.
`ascend_runtime.optional_ops.overload` gives the operator where there is one
and otherwise a stand-in that names itself when it is called. Nothing is
added to `torch.ops._C`, so code that probes for an operator still gets the
right answer. Lookups that vLLM guards itself (`is_cuda()`, `hasattr`) are
left alone.
"""

from rewriter.edits import In, Target, replace
from rewriter.transform import Example, Transform, Upstream

FOLDER = "vllm/compilation/passes/fusion"
QUANT = (
    "static_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
)


def ops(file: str, name: str, **counts: int) -> Target:
    """Make the lookups in the module constant `name` optional."""
    edits = [
        replace(
            f"torch.ops._C.{op}.default",
            f'ascend_runtime.optional_ops.overload("_C", "{op}")',
            count=count,
        )
        for op, count in counts.items()
    ]
    return In(f"{FOLDER}/{file}.py", name).do(*edits)


TRANSFORM = Transform(
    seed="platform/6",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("upstream moves these lookups away one by one"),
    remove_when="no fusion pass looks an operator up while it is imported",
    monkey_patch_lines=24,
    edits=[
        ops("matcher_utils", "RMS_OP", rms_norm=1),
        ops("matcher_utils", "RMS_ADD_OP", fused_add_rms_norm=1),
        ops("matcher_utils", "ROTARY_OP", rotary_embedding=1),
        ops("matcher_utils", "QUANT_OPS", **dict.fromkeys(QUANT, 1)),
        ops("matcher_utils", "SILU_MUL_OP", silu_and_mul=1),
        ops("rms_quant_fusion", "RMS_OP", rms_norm=1),
        ops("rms_quant_fusion", "RMS_ADD_OP", fused_add_rms_norm=1),
        ops("rms_quant_fusion", "QUANT_OPS", **dict.fromkeys(QUANT, 1)),
        ops(
            "rms_quant_fusion",
            "FUSED_OPS",
            rms_norm_static_fp8_quant=1,
            fused_add_rms_norm_static_fp8_quant=1,
            rms_norm_dynamic_per_token_quant=2,
            rms_norm_per_block_quant=4,
        ),
        ops("act_quant_fusion", "SILU_MUL_OP", silu_and_mul=1),
        ops("act_quant_fusion", "FUSED_OPS", silu_and_mul_quant=1),
        ops("qk_norm_rope_fusion", "FUSED_QK_ROPE_OP", fused_qk_norm_rope=1),
    ],
    examples=[
        Example(
            f"{FOLDER}/qk_norm_rope_fusion.py",
            before="""\
import torch

FUSED_QK_ROPE_OP = torch.ops._C.fused_qk_norm_rope.default


def probe():
    return torch.ops._C.fused_qk_norm_rope.default
""",
            after="""\
import ascend_runtime.optional_ops
import torch

FUSED_QK_ROPE_OP = ascend_runtime.optional_ops.overload("_C", "fused_qk_norm_rope")


def probe():
    return torch.ops._C.fused_qk_norm_rope.default
""",
        ),
    ],
)
