"""Let the core of gated delta nets work on gathered rows as they are.

With flash-comm, the Ascend plugin's sequence parallelism, the projections
give every rank all rows, with the padding that makes them a multiple of the
ranks. There the core works on all of them, and its results are cut to the
tokens of the batch where they are written. `ascend_runtime.gdn.
core_token_count` says how many rows; without flash-comm it is the number
that upstream cuts to, so that nothing changes.

In a batch of decodes the rows are cut before the core in any case: its
kernels want as many rows as there are states. The merged output of
speculative and other tokens needs no cut, as it is made from their indices.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"

TRANSFORM = Transform(
    seed=("worker/8", "worker/19"),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("flash-comm is the plugin's own"),
    remove_when="the plugin gives the core unpadded rows",
    edits=[
        In(FILE, "Qwen3NextGatedDeltaNet._forward_core").do(
            replace(
                """\
mixed_qkv = mixed_qkv[:num_actual_tokens]
b = b[:num_actual_tokens]
a = a[:num_actual_tokens]
""",
                """\
num_core_tokens = ascend_runtime.gdn.core_token_count(attn_metadata, mixed_qkv)
mixed_qkv = mixed_qkv[:num_core_tokens]
b = b[:num_core_tokens]
a = a[:num_core_tokens]
""",
            ),
            *(
                replace(
                    f"core_attn_out[:num_actual_tokens] = {out}.squeeze(0)",
                    f"core_attn_out[:num_actual_tokens] = {out}.squeeze(0)[:num_actual_tokens]",
                )
                for out in ("core_attn_out_spec", "core_attn_out_non_spec")
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, b, a, core_attn_out, attn_metadata):
        num_actual_tokens = attn_metadata.num_actual_tokens

        mixed_qkv = mixed_qkv[:num_actual_tokens]
        b = b[:num_actual_tokens]
        a = a[:num_actual_tokens]
        merged_out = core_attn_out_spec = core_attn_out_non_spec = self.core(mixed_qkv)
        if attn_metadata.mixed:
            core_attn_out[:num_actual_tokens] = merged_out.squeeze(0)
        elif attn_metadata.spec:
            core_attn_out[:num_actual_tokens] = core_attn_out_spec.squeeze(0)
        else:
            core_attn_out[:num_actual_tokens] = core_attn_out_non_spec.squeeze(0)

    def _forward_core_decode_non_spec(self, mixed_qkv, b, a, num_actual_tokens):
        mixed_qkv = mixed_qkv[:num_actual_tokens]
        b = b[:num_actual_tokens]
        a = a[:num_actual_tokens]
""",
            after="""\
import ascend_runtime.gdn


class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, b, a, core_attn_out, attn_metadata):
        num_actual_tokens = attn_metadata.num_actual_tokens

        num_core_tokens = ascend_runtime.gdn.core_token_count(attn_metadata, mixed_qkv)
        mixed_qkv = mixed_qkv[:num_core_tokens]
        b = b[:num_core_tokens]
        a = a[:num_core_tokens]
        merged_out = core_attn_out_spec = core_attn_out_non_spec = self.core(mixed_qkv)
        if attn_metadata.mixed:
            core_attn_out[:num_actual_tokens] = merged_out.squeeze(0)
        elif attn_metadata.spec:
            core_attn_out[:num_actual_tokens] = core_attn_out_spec.squeeze(0)[
                :num_actual_tokens
            ]
        else:
            core_attn_out[:num_actual_tokens] = core_attn_out_non_spec.squeeze(0)[
                :num_actual_tokens
            ]

    def _forward_core_decode_non_spec(self, mixed_qkv, b, a, num_actual_tokens):
        mixed_qkv = mixed_qkv[:num_actual_tokens]
        b = b[:num_actual_tokens]
        a = a[:num_actual_tokens]
""",
        ),
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, core_attn_out, num_actual_tokens):
        core_attn_out[:num_actual_tokens] = self.core(mixed_qkv[:num_actual_tokens])
""",
            after=None,
        ),
    ],
)
