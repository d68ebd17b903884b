"""Norm MiniMax-M2's queries and keys with kernels for NPUs.

Its attention norms queries and keys over all heads of all tensor-parallel
ranks, in some twenty torch operators, each a pass over memory, and then
rotates them with another. Where `ascend_runtime` has Triton kernels for the
device, they do it in two passes: one for the mean squares of both, which
one all-reduce adds up as before, one for the rest. In 16 bit the result is
rounded once. Elsewhere vLLM's own lines run, to the bit.

The norm alone is in `MiniMaxText01RMSNormTP.forward_qk`. The attention goes
further and takes its projections as they come, without copies, through norm
and rotation; if the rotation is another than the plain one in GPT-NeoX's
style, or positions are more than one a token, it does not, and the norm
alone is left to the kernels. The layer's table and the caller's positions
are used, and each norm's own eps.

Known limits: the two steps are opaque to torch.compile, so passes that look
for the operators of the norm or the rotation find none there. What a
platform puts in the place of the plain rotation is taken to do the same.
"""

from rewriter.edits import In, insert_after, insert_before
from rewriter.transform import Example, Transform, Upstream

NORM = "vllm/model_executor/layers/mamba/linear_attn.py"
MODEL = "vllm/model_executor/models/minimax_m2.py"

TRANSFORM = Transform(
    seed=("worker/17", "worker/18"),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernels are for Ascend"),
    remove_when="vLLM lets a platform replace the norms of MiniMax-M2",
    edits=[
        In(NORM, "MiniMaxText01RMSNormTP.forward_qk").do(
            insert_before(
                "orig_dtype = q.dtype",
                """
if ascend_runtime.minimax.has_fused_qk(q_norm, k_norm, q, k):
    return ascend_runtime.minimax.norm_qk(q_norm, k_norm, q, k)
""",
            ),
        ),
        In(MODEL, "MiniMaxM2Attention.forward").do(
            insert_after(
                "qkv, _ = self.qkv_proj(hidden_states)",
                """
if ascend_runtime.minimax.use_fused_qkv(self, qkv, positions):
    q, k, v = ascend_runtime.minimax.fused_qkv_norm_rope(self, qkv, positions)
    output, _ = self.o_proj(self.attn(q, k, v))
    return output
""",
            ),
        ),
    ],
    examples=[
        Example(
            NORM,
            before="""\
class MiniMaxText01RMSNormTP(CustomOp):
    def _forward(self, x):
        orig_dtype = x.dtype
        return x.to(orig_dtype)

    @staticmethod
    def forward_qk(q_norm, k_norm, q, k):
        orig_dtype = q.dtype
        return normed(q).to(orig_dtype), normed(k).to(orig_dtype)
""",
            after="""\
import ascend_runtime.minimax


class MiniMaxText01RMSNormTP(CustomOp):
    def _forward(self, x):
        orig_dtype = x.dtype
        return x.to(orig_dtype)

    @staticmethod
    def forward_qk(q_norm, k_norm, q, k):
        if ascend_runtime.minimax.has_fused_qk(q_norm, k_norm, q, k):
            return ascend_runtime.minimax.norm_qk(q_norm, k_norm, q, k)
        orig_dtype = q.dtype
        return normed(q).to(orig_dtype), normed(k).to(orig_dtype)
""",
        ),
        Example(
            MODEL,
            before="""\
class MiniMaxM2Attention(nn.Module):
    def forward(self, positions, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, *self.normed(q, k))
        output, _ = self.o_proj(self.attn(q, k, v))
        return output
""",
            after="""\
import ascend_runtime.minimax


class MiniMaxM2Attention(nn.Module):
    def forward(self, positions, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)
        if ascend_runtime.minimax.use_fused_qkv(self, qkv, positions):
            q, k, v = ascend_runtime.minimax.fused_qkv_norm_rope(self, qkv, positions)
            output, _ = self.o_proj(self.attn(q, k, v))
            return output
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, *self.normed(q, k))
        output, _ = self.o_proj(self.attn(q, k, v))
        return output
""",
        ),
        Example(
            MODEL,
            before="""\
class MiniMaxM2Attention(nn.Module):
    def forward(self, positions, hidden_states):
        q, k, v = self.projected(hidden_states)
        return self.attn(*self.rotary_emb(positions, q, k), v)


class OtherAttention(nn.Module):
    def forward(self, positions, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)
        return qkv
""",
            after=None,
        ),
        Example(
            NORM,
            before="""\
class MiniMaxText01RMSNormTP(CustomOp):
    @staticmethod
    def forward_qk(q_norm, k_norm, q, k):
        return q_norm(q), k_norm(k)
""",
            after=None,
        ),
    ],
)
