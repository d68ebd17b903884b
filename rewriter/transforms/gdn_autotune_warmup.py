"""Skip the warm-up of gated delta nets where nothing is tuned.

In the profile run a gated delta net runs its prefill kernels on dummy
tensors, so that they are tuned while memory is free, and empties the
memory cache. Kernels for Ascend are not tuned on first use, so on NPUs that
takes time and memory for nothing. The edit returns early there.
"""

from rewriter.edits import In, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"

TRANSFORM = Transform(
    seed=("worker/8", "worker/19"),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("only NPUs have kernels that are never tuned"),
    remove_when="vLLM asks the platform whether kernels are tuned",
    edits=[
        In(FILE, "Qwen3NextGatedDeltaNet._warmup_prefill_kernels").do(
            insert_before(
                """\
if hasattr(self, "_prefill_kernels_warmed_up"):
    return
""",
                """\
if not ascend_runtime.gdn.needs_autotune_warmup():
    return
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before='''\
class Qwen3NextGatedDeltaNet:
    def _warmup_prefill_kernels(self, mixed_qkv):
        """Warm up."""
        if hasattr(self, "_prefill_kernels_warmed_up"):
            return
        self._prefill_kernels_warmed_up = True

    def _forward_core(self, mixed_qkv):
        self._warmup_prefill_kernels(mixed_qkv)
''',
            after='''\
import ascend_runtime.gdn


class Qwen3NextGatedDeltaNet:
    def _warmup_prefill_kernels(self, mixed_qkv):
        """Warm up."""
        if not ascend_runtime.gdn.needs_autotune_warmup():
            return
        if hasattr(self, "_prefill_kernels_warmed_up"):
            return
        self._prefill_kernels_warmed_up = True

    def _forward_core(self, mixed_qkv):
        self._warmup_prefill_kernels(mixed_qkv)
''',
        ),
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def _warmup_prefill_kernels(self, mixed_qkv):
        self.chunk_gated_delta_rule(mixed_qkv)
""",
            after=None,
        ),
    ],
)
