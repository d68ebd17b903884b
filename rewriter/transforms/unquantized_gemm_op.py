"""Make the unquantised GEMM a custom operator on out-of-tree platforms.

Fusion passes find their patterns in the graph by operators. On ROCm the
GEMM of unquantised layers is an operator of its own, elsewhere it is
`torch.nn.functional.linear`, which is taken apart before the passes see it;
those of Ascend look for `vllm::unquantized_gemm(x, weight, bias)`. The edit
registers that operator, with a fake that keeps all leading dimensions, and
`dispatch_unquantized_gemm` hands it to out-of-tree platforms. The result is
that of `linear`; other platforms keep their functions.

Every caller asks `dispatch_unquantized_gemm`. The operator runs on every
device. Who else defines an operator of that name (the plugin's own patch
does) must not be loaded beside it.
"""

from rewriter.edits import In, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/layers/utils.py"

TRANSFORM = Transform(
    seed="worker/11",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.pending(),
    remove_when="vLLM lets out-of-tree platforms choose the GEMM of unquantised layers",
    edits=[
        In(FILE).do(
            insert_after(
                """
direct_register_custom_op(
    op_name="rocm_unquantized_gemm",
    op_func=rocm_unquantized_gemm_impl,
    fake_impl=rocm_unquantized_gemm_fake,
)
""",
                """


def oot_unquantized_gemm_impl(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def oot_unquantized_gemm(
    layer: torch.nn.Module,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return torch.ops.vllm.unquantized_gemm(x, weight, bias)


# An operator that the fusion passes of out-of-tree platforms can match.
direct_register_custom_op(
    op_name="unquantized_gemm",
    op_func=oot_unquantized_gemm_impl,
    fake_impl=rocm_unquantized_gemm_fake,
    dispatch_key="CompositeExplicitAutograd",
)
""",
            ),
        ),
        In(FILE, "dispatch_unquantized_gemm").do(
            replace(
                """
if current_platform.is_rocm():
    return rocm_unquantized_gemm
elif current_platform.is_cpu():
    return cpu_unquantized_gemm
else:
    return default_unquantized_gemm
""",
                """
if current_platform.is_rocm():
    return rocm_unquantized_gemm
elif current_platform.is_cpu():
    return cpu_unquantized_gemm
elif current_platform.is_out_of_tree():
    return oot_unquantized_gemm
else:
    return default_unquantized_gemm
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch

direct_register_custom_op(
    op_name="rocm_unquantized_gemm",
    op_func=rocm_unquantized_gemm_impl,
    fake_impl=rocm_unquantized_gemm_fake,
)


def dispatch_unquantized_gemm():
    if current_platform.is_rocm():
        return rocm_unquantized_gemm
    elif current_platform.is_cpu():
        return cpu_unquantized_gemm
    else:
        return default_unquantized_gemm
""",
            after="""\
import torch

direct_register_custom_op(
    op_name="rocm_unquantized_gemm",
    op_func=rocm_unquantized_gemm_impl,
    fake_impl=rocm_unquantized_gemm_fake,
)


def oot_unquantized_gemm_impl(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def oot_unquantized_gemm(
    layer: torch.nn.Module,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return torch.ops.vllm.unquantized_gemm(x, weight, bias)


# An operator that the fusion passes of out-of-tree platforms can match.
direct_register_custom_op(
    op_name="unquantized_gemm",
    op_func=oot_unquantized_gemm_impl,
    fake_impl=rocm_unquantized_gemm_fake,
    dispatch_key="CompositeExplicitAutograd",
)


def dispatch_unquantized_gemm():
    if current_platform.is_rocm():
        return rocm_unquantized_gemm
    elif current_platform.is_cpu():
        return cpu_unquantized_gemm
    elif current_platform.is_out_of_tree():
        return oot_unquantized_gemm
    else:
        return default_unquantized_gemm
""",
        ),
        Example(
            FILE,
            before="""\
def dispatch_unquantized_gemm():
    return default_unquantized_gemm
""",
            after=None,
        ),
    ],
)
