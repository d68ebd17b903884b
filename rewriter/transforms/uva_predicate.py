"""Say that unified virtual addressing is there only where vLLM can use it.

`is_uva_available` asks for pinned memory and nothing else, but the view of
host memory that UVA needs exists for CUDA, ROCm and XPU only. On any other
platform that can pin memory, weight offloading (`--cpu-offload-gb`) chose
UVA and failed with a ValueError; the second model runner did so too. The
predicate asks for those platforms now, so offloading takes its other path,
which moves weights when they are needed. A large tensor that the model
runner would rather keep in host memory lies on the device without UVA.

Known limit: that costs device memory, 4 bytes times `max_num_seqs` times
`max_model_len` for token ids (512 MiB for 1024 and 131072), and three times
as much for the positions of models with M-RoPE.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

PREDICATE = "vllm/utils/platform_utils.py"
BUFFERS = "vllm/v1/worker/gpu/buffer_utils.py"
BEFORE = "return is_pin_memory_available()"
AFTER = """
from vllm.platforms import current_platform

# UVA requires pinned memory, and a view of it that the device can use
# (see `get_accelerator_view_from_cpu_tensor`).
return is_pin_memory_available() and (
    current_platform.is_cuda_alike() or current_platform.is_xpu()
)
"""

TRANSFORM = Transform(
    seed="worker/13",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("0.30.0 has the large tensors on the device, not the predicate"),
    remove_when="the platform says whether it has UVA",
    edits=[
        In(PREDICATE, "is_uva_available").do(replace(BEFORE, AFTER, with_comments=True)),
        In(BUFFERS, "StagedWriteTensor.__init__").do(
            replace("not uva_instead_of_gpu", "not (uva_instead_of_gpu and is_uva_available())"),
        ),
    ],
    examples=[
        Example(
            PREDICATE,
            before='''\
@cache
def is_pin_memory_available() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_pin_memory_available()


@cache
def is_uva_available() -> bool:
    """Check if Unified Virtual Addressing (UVA) is available."""
    # UVA requires pinned memory.
    return is_pin_memory_available()
''',
            after='''\
@cache
def is_pin_memory_available() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_pin_memory_available()


@cache
def is_uva_available() -> bool:
    """Check if Unified Virtual Addressing (UVA) is available."""
    from vllm.platforms import current_platform

    # UVA requires pinned memory, and a view of it that the device can use
    # (see `get_accelerator_view_from_cpu_tensor`).
    return is_pin_memory_available() and (
        current_platform.is_cuda_alike() or current_platform.is_xpu()
    )
''',
        ),
        Example(
            PREDICATE,
            before="""\
def is_uva_available() -> bool:
    return is_pin_memory_available() or current_platform.is_cpu()
""",
            after=None,
        ),
    ],
)
