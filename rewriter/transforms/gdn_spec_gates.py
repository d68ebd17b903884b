"""Give the speculative tokens of gated delta nets their own gates.

In a batch of speculative and other requests the core picks q, k and v of
the speculative tokens by `spec_token_indx`, but hands all rows of the gates
a and b to the recurrence, which reads as many as it has tokens, from the
front. Unless the speculative requests come first, their tokens are decayed
and updated by the gates of other requests. The batch is not ordered so: a
request without drafts may stand before one that has some. The edit picks
the gates by the same index. Where all requests are speculative, nothing is
picked, as before.
"""

from rewriter.edits import In, insert_after, set_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"
CALL = "fused_sigmoid_gating_delta_rule_update(..., q=query_spec)"

TRANSFORM = Transform(
    seed="worker/19",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/51812"),
    remove_when="the base has pull request 51812",
    edits=[
        In(FILE, "Qwen3NextGatedDeltaNet._forward_core").do(
            insert_after("mixed_qkv_spec = mixed_qkv", "a_spec, b_spec = a, b"),
            insert_after(
                "mixed_qkv_spec = mixed_qkv.index_select(0, spec_token_indx)",
                """\
a_spec = a.index_select(0, spec_token_indx)
b_spec = b.index_select(0, spec_token_indx)
""",
            ),
            set_keyword(CALL, was="a", a="a_spec"),
            set_keyword(CALL, was="b", b="b_spec"),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, b, a, attn_metadata, spec_token_indx):
        if attn_metadata.num_prefills == 0:
            mixed_qkv_spec = mixed_qkv
            mixed_qkv_non_spec = None
        else:
            mixed_qkv_spec = mixed_qkv.index_select(0, spec_token_indx)
            mixed_qkv_non_spec = mixed_qkv.index_select(0, attn_metadata.others)
        query_spec = self.rearrange_mixed_qkv(mixed_qkv_spec)
        query_non_spec = self.rearrange_mixed_qkv(mixed_qkv_non_spec)
        spec = fused_sigmoid_gating_delta_rule_update(a=a, b=b, q=query_spec)
        decode = fused_sigmoid_gating_delta_rule_update(a=a, b=b, q=query_non_spec)
        return spec, decode
""",
            after="""\
class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, b, a, attn_metadata, spec_token_indx):
        if attn_metadata.num_prefills == 0:
            mixed_qkv_spec = mixed_qkv
            a_spec, b_spec = a, b
            mixed_qkv_non_spec = None
        else:
            mixed_qkv_spec = mixed_qkv.index_select(0, spec_token_indx)
            a_spec = a.index_select(0, spec_token_indx)
            b_spec = b.index_select(0, spec_token_indx)
            mixed_qkv_non_spec = mixed_qkv.index_select(0, attn_metadata.others)
        query_spec = self.rearrange_mixed_qkv(mixed_qkv_spec)
        query_non_spec = self.rearrange_mixed_qkv(mixed_qkv_non_spec)
        spec = fused_sigmoid_gating_delta_rule_update(a=a_spec, b=b_spec, q=query_spec)
        decode = fused_sigmoid_gating_delta_rule_update(a=a, b=b, q=query_non_spec)
        return spec, decode
""",
        ),
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def _forward_core(self, mixed_qkv, g, beta):
        query_spec = self.rearrange_mixed_qkv(mixed_qkv)
        return fused_recurrent_gated_delta_rule(q=query_spec, g=g, beta=beta)
""",
            after=None,
        ),
    ],
)
