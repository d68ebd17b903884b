"""Dispatch uniform decodes in FULL mode to the graphs that were captured.

In mode FULL the graphs are captured for mixed batches, but `dispatch` asked
for the key of a uniform one, which no graph has, and so ran without. vLLM
0.18.0 asks for a uniform graph only where decodes have a routine of their
own, and this transform proves it: on such a base it changes nothing. On
0.17.1 it makes the same change.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/cudagraph_dispatcher.py"

TRANSFORM = Transform(
    seed="worker/20",
    tag="Bugfix",
    vllm=">=0.17",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/36165, in 0.18.0"),
    remove_when="bases before 0.18.0 are of no interest",
    edits=[
        In(FILE, "CudagraphDispatcher.dispatch").do(
            replace(
                """
batch_desc = self._create_padded_batch_descriptor(
    num_tokens, uniform_decode, has_lora, effective_num_active_loras
)
""",
                """
normalized_uniform = uniform_decode and self.cudagraph_mode.separate_routine()
batch_desc = self._create_padded_batch_descriptor(
    num_tokens, normalized_uniform, has_lora, effective_num_active_loras
)
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class CudagraphDispatcher:
    def dispatch(self, num_tokens, uniform_decode, has_lora, effective_num_active_loras):
        batch_desc = self._create_padded_batch_descriptor(
            num_tokens, uniform_decode, has_lora, effective_num_active_loras
        )
        return batch_desc
""",
            after="""\
class CudagraphDispatcher:
    def dispatch(self, num_tokens, uniform_decode, has_lora, effective_num_active_loras):
        normalized_uniform = uniform_decode and self.cudagraph_mode.separate_routine()
        batch_desc = self._create_padded_batch_descriptor(
            num_tokens, normalized_uniform, has_lora, effective_num_active_loras
        )
        return batch_desc
""",
        ),
        Example(
            FILE,
            before="""\
class CudagraphDispatcher:
    def dispatch(self, num_tokens):
        return self._create_padded_batch_descriptor(num_tokens, True, False)
""",
            after=None,
        ),
    ],
)
