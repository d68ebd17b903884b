"""Pin host memory only where the platform can.

Both model runners and structured output ask for pinned memory without a
question: staged writes, penalties, bitmask indices and the multimodal mask
of the second runner, the buffers of n-gram drafts, the indices of bitmasks.
Where there is none, as on a CPU or in WSL, torch raises. They ask
`is_pin_memory_available()` now, as the rest of vLLM does. Where memory can
be pinned nothing changes.

Known limit: MLA's chunked prefill, ROCm's attention, the prefetching
offloader and the P2P connector pin without asking too; they do not run
where there is no such memory.
"""

from rewriter.edits import In, Target, set_keyword
from rewriter.transform import Example, Transform, Upstream

ASKED = "is_pin_memory_available()"
PINNED = "from vllm.utils.platform_utils import is_pin_memory_available"
RUNNER = "vllm/v1/worker/gpu"


def asks(file: str, function: str, call: str, count: int = 1, imports: str = PINNED) -> Target:
    """Ask before the memory of a call is pinned."""
    edit = set_keyword(call, was="True", pin_memory=ASKED, count=count)
    return In(file, function).do(edit, imports=imports)


TRANSFORM = Transform(
    seed=(),
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("device neutral"),
    remove_when="upstream asks in each of these places",
    edits=[
        asks(f"{RUNNER}/buffer_utils.py", "StagedWriteTensor.apply_write", "async_tensor_h2d(...)"),
        asks(
            f"{RUNNER}/sample/penalties.py",
            "PenaltiesState.apply_staged_writes",
            "async_tensor_h2d(...)",
        ),
        asks(
            f"{RUNNER}/structured_outputs.py",
            "StructuredOutputsWorker.apply_grammar_bitmask",
            "torch.tensor(mapping, ...)",
        ),
        asks(
            f"{RUNNER}/mm/encoder_runner.py",
            "EncoderRunner.gather_mm_embeddings",
            "torch.zeros(...)",
        ),
        asks(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner.__init__",
            "torch.zeros(self.max_num_reqs, ...)",
            count=2,
        ),
        asks(
            "vllm/v1/structured_output/utils.py",
            "apply_grammar_bitmask",
            "torch.tensor(out_indices, ...)",
        ),
    ],
    examples=[
        Example(
            f"{RUNNER}/buffer_utils.py",
            before="""\
from vllm.utils.torch_utils import async_tensor_h2d


class StagedWriteTensor:
    def apply_write(self):
        return async_tensor_h2d(self.contents, self.dtype, self.device, pin_memory=True)
""",
            after="""\
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.utils.torch_utils import async_tensor_h2d


class StagedWriteTensor:
    def apply_write(self):
        return async_tensor_h2d(
            self.contents, self.dtype, self.device, pin_memory=is_pin_memory_available()
        )
""",
        ),
        Example(
            f"{RUNNER}/buffer_utils.py",
            before="""\
class StagedWriteTensor:
    def apply_write(self, pin_memory):
        return async_tensor_h2d(self.contents, self.dtype, self.device, pin_memory=pin_memory)
""",
            after=None,
        ),
    ],
)
