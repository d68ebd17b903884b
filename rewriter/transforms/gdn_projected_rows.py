"""Count the rows of gated delta nets where they are made.

Qwen3-Next and Qwen3.5 size the core's output, and what they write of the
result, by the rows of the layer's input. Sequence parallelism may gather
rows in the input projection and scatter them in the output projection; then
the counts differ, and the norm fails on unequal shapes. The edit takes the
first count from the projected states and the second from the result. Where
no projection changes the rows, nothing changes.
"""

from rewriter.edits import In, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

NEXT = "vllm/model_executor/models/qwen3_next.py"
QWEN3_5 = "vllm/model_executor/models/qwen3_5.py"
OLD = replace("num_tokens = hidden_states.size(0)", "")
WRITE = replace(
    "output[:num_tokens], _ = self.out_proj(core_attn_out)",
    """\
projected, _ = self.out_proj(core_attn_out)
output[: projected.size(0)] = projected
""",
)

TRANSFORM = Transform(
    seed=("worker/8", "worker/19"),
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.pending("0.19.0 has the layer in another file, with the same counts"),
    remove_when="upstream counts the rows of the projections",
    edits=[
        In(NEXT, "Qwen3NextGatedDeltaNet.forward").do(
            OLD,
            insert_after(
                "projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)",
                "num_tokens = projected_states_qkvz.size(0)",
            ),
            WRITE,
        ),
        In(QWEN3_5, "Qwen3_5GatedDeltaNet.forward").do(
            OLD,
            insert_after(
                "mixed_qkvz, _ = self.in_proj_qkvz(hidden_states)",
                "num_tokens = mixed_qkvz.size(0)",
            ),
            WRITE,
        ),
    ],
    examples=[
        Example(
            NEXT,
            before='''\
class Qwen3NextGatedDeltaNet:
    def forward(self, hidden_states, output):
        """
        Three parts.
        """
        num_tokens = hidden_states.size(0)

        # Part 1: Input Projection
        projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
        projected_states_ba, _ = self.in_proj_ba(hidden_states)
        core_attn_out = self.core(projected_states_qkvz, projected_states_ba, num_tokens)
        output[:num_tokens], _ = self.out_proj(core_attn_out)
''',
            after='''\
class Qwen3NextGatedDeltaNet:
    def forward(self, hidden_states, output):
        """
        Three parts.
        """

        # Part 1: Input Projection
        projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
        num_tokens = projected_states_qkvz.size(0)
        projected_states_ba, _ = self.in_proj_ba(hidden_states)
        core_attn_out = self.core(projected_states_qkvz, projected_states_ba, num_tokens)
        projected, _ = self.out_proj(core_attn_out)
        output[: projected.size(0)] = projected
''',
        ),
        Example(
            QWEN3_5,
            before="""\
class Qwen3_5GatedDeltaNet:
    def forward(self, hidden_states, output):
        num_tokens = hidden_states.size(0)
        mixed_qkvz, _ = self.in_proj_qkvz(hidden_states)
        core_attn_out = self.core(mixed_qkvz, num_tokens)
        output[:num_tokens], _ = self.out_proj(core_attn_out)
""",
            after="""\
class Qwen3_5GatedDeltaNet:
    def forward(self, hidden_states, output):
        mixed_qkvz, _ = self.in_proj_qkvz(hidden_states)
        num_tokens = mixed_qkvz.size(0)
        core_attn_out = self.core(mixed_qkvz, num_tokens)
        projected, _ = self.out_proj(core_attn_out)
        output[: projected.size(0)] = projected
""",
        ),
        Example(
            NEXT,
            before="""\
class Qwen3NextGatedDeltaNet:
    def forward(self, hidden_states, output):
        projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
        output[:], _ = self.out_proj(projected_states_qkvz)
""",
            after=None,
        ),
    ],
)
