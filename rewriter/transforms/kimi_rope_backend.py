"""Compile Kimi-K2.5's position interpolation with the platform's backend.

`get_rope_shape` is compiled with Inductor on every platform. A platform
says in `simple_compile_backend` what small functions are to be compiled
with (Ascend: eagerly), and other places of vLLM ask it already.
"""

from rewriter.edits import In, add_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/kimi_k25_vit.py"

TRANSFORM = Transform(
    seed="worker/14",
    tag="Model",
    vllm=">=0.18,<0.29",
    upstream=Upstream.backport("the same keyword is in 0.29.0"),
    remove_when="the base is 0.29.0 or later",
    edits=[
        In(FILE, "get_rope_shape").do(
            add_keyword(
                "torch.compile(..., dynamic=True)",
                backend="current_platform.simple_compile_backend",
            ),
            imports="from vllm.platforms import current_platform",
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch

from vllm.model_executor.models.vision import is_vit_use_data_parallel


@get_rope_shape_decorate
@torch.compile(dynamic=True)
def get_rope_shape(org, interpolation_mode, shape):
    return org
""",
            after="""\
import torch

from vllm.model_executor.models.vision import is_vit_use_data_parallel
from vllm.platforms import current_platform


@get_rope_shape_decorate
@torch.compile(dynamic=True, backend=current_platform.simple_compile_backend)
def get_rope_shape(org, interpolation_mode, shape):
    return org
""",
        ),
    ],
)
