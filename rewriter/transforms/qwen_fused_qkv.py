"""Split, normalise and rotate Qwen3-Next's q and k in one operation.

Between the projection and the attention, `Qwen3NextAttention` (that of
Qwen3.5 too) splits q from its gate, copies both, normalises the heads of q
and k, and rotates a quarter of each: a dozen operators that each read and
write all of q or k. The edit takes one operation instead where there is a
kernel for it: on NPUs with Triton, for the rotary embeddings that are a
table of cos and sin (plain, YaRN, or multimodal with sections, interleaved
or not) and norms of the expected class, or what the platform registered in
their places. `ascend_runtime.qwen.fuses_qkv` decides, of attributes that
torch.compile takes for constants; elsewhere upstream's statements run as
they are.

The kernel rounds where the unfused code for any platform does; a platform's
own operators may round elsewhere, so that the last bits of q and k differ.
"""

from rewriter.edits import In, insert_after
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"
NEW = """\
if ascend_runtime.qwen.fuses_qkv(self, positions, qkv):
    q, k, v, gate = ascend_runtime.qwen.split_qkv_norm_rope(self, positions, qkv)
    attn_output = self.attn(q, k, v)
    if gate is not None:
        attn_output = attn_output * torch.sigmoid(gate)
    output[:], _ = self.o_proj(attn_output)
    return
"""

TRANSFORM = Transform(
    seed="worker/19",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the kernel is written for Ascend"),
    remove_when="vLLM fuses the norm and rotation of q and k on all platforms, gate and all",
    edits=[
        In(FILE, "Qwen3NextAttention.forward").do(
            insert_after("qkv, _ = self.qkv_proj(hidden_states)", NEW)
        )
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


class Qwen3NextAttention:
    def forward(self, positions, output, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)

        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        output[:], _ = self.o_proj(self.attn(q, k, v))
""",
            after="""\
import ascend_runtime.qwen
import torch


class Qwen3NextAttention:
    def forward(self, positions, output, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)
        if ascend_runtime.qwen.fuses_qkv(self, positions, qkv):
            q, k, v, gate = ascend_runtime.qwen.split_qkv_norm_rope(
                self, positions, qkv
            )
            attn_output = self.attn(q, k, v)
            if gate is not None:
                attn_output = attn_output * torch.sigmoid(gate)
            output[:], _ = self.o_proj(attn_output)
            return

        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        output[:], _ = self.o_proj(self.attn(q, k, v))
""",
        ),
        Example(
            FILE,
            before="""\
class Qwen3NextAttention:
    def forward(self, positions, output, hidden_states):
        q, _ = self.q_proj(hidden_states)
        output[:], _ = self.o_proj(self.attn(q))


class OtherAttention:
    def forward(self, positions, hidden_states):
        qkv, _ = self.qkv_proj(hidden_states)
        return qkv
""",
            after=None,
        ),
    ],
)
