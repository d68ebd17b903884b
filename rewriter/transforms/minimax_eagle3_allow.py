"""Allow Eagle-3 drafts for MiniMax-M2.

The list of target models that can hand out auxiliary hidden states lacks
MiniMax-M2, so a draft model for it is refused. The list is matched by
substring; the entry is the full model type, so that other MiniMax models,
which hand out no hidden states, stay refused.
"""

from rewriter.edits import In, add_item
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/config/speculative.py"

TRANSFORM = Transform(
    seed="platform/7",
    tag="Model",
    vllm=">=0.18,<0.22",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/37512, in 0.19.1"),
    remove_when="the base is 0.19.1 or later",
    monkey_patch_lines=282,
    edits=[
        In(FILE, "SpeculativeConfig._verify_args").do(
            add_item(to="aux_hidden_states_supported", value='"minimax_m2"'),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class SpeculativeConfig:
    def _verify_args(self):
        aux_hidden_states_supported = [
            "llama",
            "kimi_k25",
        ]
        return aux_hidden_states_supported
""",
            after="""\
class SpeculativeConfig:
    def _verify_args(self):
        aux_hidden_states_supported = [
            "llama",
            "kimi_k25",
            "minimax_m2",
        ]
        return aux_hidden_states_supported
""",
        ),
    ],
)
