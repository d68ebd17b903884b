"""Split the projections of Qwen3-Next's gated delta nets in one step.

Views, three reshaping copies and a concatenation sort the interleaved
columns of two projections into q|k|v, z, b and a. The edit makes that one
call, `ascend_runtime.gdn.split_qkvzba`: on NPUs one operator, which a
kernel can take over; elsewhere it is traced by torch.compile and gives the
same bits as the statements that it replaces.

Always contiguous are all four results. With one key head on each rank, as
with 16 ranks, upstream's a and b are views with gaps, which its gating
kernel reads as if there were none.

`fix_query_key_value_ordering` stays, though nothing in vLLM calls it now;
a subclass that overrides it is to override `forward` as well, as Qwen3.5's
does.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"
OLD = """\
query, key, value, z, b, a = self.fix_query_key_value_ordering(
    projected_states_qkvz, projected_states_ba
)
query, key, value = map(lambda x: rearrange(x, "l p d -> l (p d)"), (query, key, value))
mixed_qkv = torch.cat((query, key, value), dim=-1)
"""
NEW = """\
mixed_qkv, z, b, a = ascend_runtime.gdn.split_qkvzba(
    projected_states_qkvz,
    projected_states_ba,
    self.num_k_heads // self.tp_size,
    self.num_v_heads // self.tp_size,
    self.head_k_dim,
    self.head_v_dim,
)
"""

TRANSFORM = Transform(
    seed="worker/8",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the operator belongs to Ascend"),
    remove_when="vLLM lets a platform split the projections, as its PluggableLayer would",
    edits=[In(FILE, "Qwen3NextGatedDeltaNet.forward").do(replace(OLD, NEW))],
    examples=[
        Example(
            FILE,
            before="""\
import torch
from einops import rearrange


class Qwen3NextGatedDeltaNet:
    def forward(self, hidden_states):
        projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
        projected_states_ba, _ = self.in_proj_ba(hidden_states)
        query, key, value, z, b, a = self.fix_query_key_value_ordering(
            projected_states_qkvz, projected_states_ba
        )
        query, key, value = map(
            lambda x: rearrange(x, "l p d -> l (p d)"), (query, key, value)
        )
        mixed_qkv = torch.cat((query, key, value), dim=-1)
        return rearrange(mixed_qkv, "l d -> 1 l d"), z, b, a
""",
            after="""\
import ascend_runtime.gdn
import torch
from einops import rearrange


class Qwen3NextGatedDeltaNet:
    def forward(self, hidden_states):
        projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
        projected_states_ba, _ = self.in_proj_ba(hidden_states)
        mixed_qkv, z, b, a = ascend_runtime.gdn.split_qkvzba(
            projected_states_qkvz,
            projected_states_ba,
            self.num_k_heads // self.tp_size,
            self.num_v_heads // self.tp_size,
            self.head_k_dim,
            self.head_v_dim,
        )
        return rearrange(mixed_qkv, "l d -> 1 l d"), z, b, a
""",
        ),
        Example(
            FILE,
            before="""\
class Qwen3NextGatedDeltaNet:
    def forward(self, mixed_qkvz):
        mixed_qkv, z = mixed_qkvz.split(self.sizes, dim=-1)
        return mixed_qkv, z
""",
            after=None,
        ),
    ],
)
