"""Compile random sampling with the platform's backend.

`compiled_random_sample` is compiled with Inductor, which on a CPU calls a
C++ compiler at run time. A platform says in `simple_compile_backend` what
small functions are to be compiled with, and other places of vLLM ask it
already. Only the CPU platform samples by this function today.
"""

from rewriter.edits import In, add_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/sample/ops/topk_topp_sampler.py"

TRANSFORM = Transform(
    seed="worker/14",
    tag="Bugfix",
    vllm=">=0.18,<0.29",
    upstream=Upstream.backport("the same keyword is in 0.29.0"),
    remove_when="the base is 0.29.0 or later",
    edits=[
        In(FILE, "compiled_random_sample").do(
            add_keyword(
                "torch.compile(..., dynamic=True)",
                backend="current_platform.simple_compile_backend",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch

from vllm.platforms import current_platform


# a workaround
@torch.compile(dynamic=True)
def compiled_random_sample(logits):
    return logits


@torch.compile(dynamic=True)
def other(logits):
    return logits, current_platform
""",
            after="""\
import torch

from vllm.platforms import current_platform


# a workaround
@torch.compile(dynamic=True, backend=current_platform.simple_compile_backend)
def compiled_random_sample(logits):
    return logits


@torch.compile(dynamic=True)
def other(logits):
    return logits, current_platform
""",
        ),
    ],
)
