"""Reduce the output of routed experts once.

Five models reduce the output of their experts over the tensor-parallel
ranks themselves. Where the kernel that combines the experts' outputs has
done that already (all-to-all, MC2 on Ascend), the result is multiplied by
the number of ranks. The edit leaves the decision to
`maybe_all_reduce_tensor_model_parallel` of the layer, as 19 other models
do: the same reduction, or none.

Shared experts are another matter: no kernel reduces their output. Where
the routed one is reduced already, dots1, Hunyuan and Kimi-Linear reduce the
shared one by itself before the sum; Step-3's shared expert always did.

Known limit: whether to is asked of the layer by
`must_reduce_shared_expert_outputs`. A platform whose layer reduces on its
own account must answer it in agreement with the reduction.
"""

from rewriter.edits import In, insert_before, replace
from rewriter.transform import Example, Transform, Upstream

MODELS = "vllm/model_executor/models/"
MINIMAX, DOTS, HUNYUAN, KIMI, STEP = (
    f"{MODELS}{name}.py"
    for name in ("minimax_m2", "dots1", "hunyuan_v1", "kimi_linear", "step3_text")
)
IMPORT = "from vllm.distributed import tensor_model_parallel_all_reduce"
MAYBE = replace(
    "tensor_model_parallel_all_reduce(final_hidden_states)",
    "self.experts.maybe_all_reduce_tensor_model_parallel(final_hidden_states)",
)


def early(name: str) -> str:
    """The reduction of what the shared experts give."""
    return f"""\
if self.tp_size > 1 and self.experts.must_reduce_shared_expert_outputs():
    {name} = tensor_model_parallel_all_reduce({name})"""


TRANSFORM = Transform(
    seed="worker/17",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.pending("in 0.20.0 the expert layer reduces by itself"),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(MINIMAX, "MiniMaxM2MoE.forward").do(MAYBE, drops=IMPORT),
        In(STEP, "FusedMoEBlock.forward").do(MAYBE, drops=IMPORT),
        In(DOTS, "Dots1MoE.forward").do(
            insert_before(
                "final_hidden_states = (routed_out + shared_out) * self.routed_scaling_factor",
                early("shared_out"),
            ),
            MAYBE,
        ),
        In(KIMI, "KimiMoE.forward").do(
            insert_before(
                "final_hidden_states = final_hidden_states + shared_output", early("shared_output")
            ),
            MAYBE,
        ),
        In(HUNYUAN, "HunYuanSparseMoeBlock.forward").do(
            replace(
                "final_hidden_states = final_hidden_states[0] + final_hidden_states[1]",
                f"""
shared_out, routed_out = final_hidden_states
{early("shared_out")}
final_hidden_states = shared_out + routed_out
""",
            ),
            MAYBE,
        ),
    ],
    examples=[
        Example(
            MINIMAX,
            before="""\
from vllm.distributed import (
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)


class MiniMaxM2MoE:
    def forward(self, hidden_states):
        final_hidden_states = self.experts(hidden_states)
        if self.tp_size > 1:
            final_hidden_states = tensor_model_parallel_all_reduce(final_hidden_states)
        return final_hidden_states
""",
            after="""\
from vllm.distributed import (
    get_tensor_model_parallel_world_size,
)


class MiniMaxM2MoE:
    def forward(self, hidden_states):
        final_hidden_states = self.experts(hidden_states)
        if self.tp_size > 1:
            final_hidden_states = self.experts.maybe_all_reduce_tensor_model_parallel(
                final_hidden_states
            )
        return final_hidden_states
""",
        ),
        Example(
            DOTS,
            before="""\
class Dots1MoE:
    def forward(self, hidden_states):
        shared_out, routed_out = self.experts(hidden_states)
        if self.shared_experts is not None:
            final_hidden_states = (routed_out + shared_out) * self.routed_scaling_factor
        else:
            final_hidden_states = routed_out * self.routed_scaling_factor

        if self.tp_size > 1:
            final_hidden_states = tensor_model_parallel_all_reduce(final_hidden_states)
        return final_hidden_states
""",
            after="""\
class Dots1MoE:
    def forward(self, hidden_states):
        shared_out, routed_out = self.experts(hidden_states)
        if self.shared_experts is not None:
            if self.tp_size > 1 and self.experts.must_reduce_shared_expert_outputs():
                shared_out = tensor_model_parallel_all_reduce(shared_out)
            final_hidden_states = (routed_out + shared_out) * self.routed_scaling_factor
        else:
            final_hidden_states = routed_out * self.routed_scaling_factor

        if self.tp_size > 1:
            final_hidden_states = self.experts.maybe_all_reduce_tensor_model_parallel(
                final_hidden_states
            )
        return final_hidden_states
""",
        ),
        Example(
            HUNYUAN,
            before="""\
class HunYuanSparseMoeBlock:
    def forward(self, hidden_states):
        final_hidden_states = self.experts(hidden_states)
        if self.shared_mlp is not None:
            final_hidden_states = final_hidden_states[0] + final_hidden_states[1]

        if self.tp_size > 1:
            final_hidden_states = tensor_model_parallel_all_reduce(final_hidden_states)
        return final_hidden_states
""",
            after="""\
class HunYuanSparseMoeBlock:
    def forward(self, hidden_states):
        final_hidden_states = self.experts(hidden_states)
        if self.shared_mlp is not None:
            shared_out, routed_out = final_hidden_states
            if self.tp_size > 1 and self.experts.must_reduce_shared_expert_outputs():
                shared_out = tensor_model_parallel_all_reduce(shared_out)
            final_hidden_states = shared_out + routed_out

        if self.tp_size > 1:
            final_hidden_states = self.experts.maybe_all_reduce_tensor_model_parallel(
                final_hidden_states
            )
        return final_hidden_states
""",
        ),
        Example(
            STEP,
            before="""\
class FusedMoEBlock:
    def forward(self, hidden_states):
        final_hidden_states = self.experts(hidden_states)
        return tensor_model_parallel_all_reduce(hidden_states)
""",
            after=None,
        ),
    ],
)
