"""Fit Eagle-3 drafts to targets that were rotated before quantization.

Ascend's quantizer can rotate the residual stream of a model first
(QuaRot): its hidden states are h Q with an orthogonal Q. Eagle-3 drafts
were trained on h, so nearly all that they propose is refused. The edits
let the drafts of both architectures, Llama and DeepSeek, pass the weights
of their checkpoint through `ascend_runtime.quarot`, which rotates back all
that comes from the target: the columns of `fc`, with the scale of the norm
before it folded in, `mask_hidden` of parallel drafting, and the target's
input embedding where the draft has none. They do nothing unless the
quantization description of the target names a rotation.

Known limits: a draft without an lm_head shares that of the target, which
is rotated, and one without `fc` takes rotated states as they are; both are
warned of. A quantized `fc` is refused. EAGLE-1 and Medusa heads take
rotated states too, and are left alone. Nothing of this makes the output
wrong: the target decides; only fewer drafts are accepted.
"""

from rewriter.edits import In, Target, insert_after, insert_before
from rewriter.transform import Example, Transform, Upstream

LLAMA = "vllm/model_executor/models/llama_eagle3.py"
DEEPSEEK = "vllm/model_executor/models/deepseek_eagle3.py"


def adapted(path: str, head: str) -> list[Target]:
    """The edits of one head: find the rotation, and pass the weights through."""
    return [
        In(path, f"{head}.__init__").do(
            insert_after(
                "self.config = vllm_config.speculative_config.draft_model_config.hf_config",
                "self.target_rotation = ascend_runtime.quarot.find_target_rotation(vllm_config)",
            ),
        ),
        In(path, f"{head}.load_weights").do(
            insert_before(
                "model_weights = {}",
                "weights = ascend_runtime.quarot.adapt_draft_weights(self, weights)",
            ),
        ),
    ]


TRANSFORM = Transform(
    seed="worker/16",
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.inappropriate(
        "the rotation is told by a description of Ascend's quantizer;"
        " https://github.com/vllm-project/vllm/pull/36225 is upstream's own draft"
    ),
    remove_when="vLLM fits drafts to rotated targets by itself",
    edits=[
        *adapted(LLAMA, "Eagle3LlamaForCausalLM"),
        *adapted(DEEPSEEK, "Eagle3DeepseekV2ForCausalLM"),
    ],
    examples=[
        Example(
            LLAMA,
            before="""\
class LlamaModel:
    def __init__(self, vllm_config):
        self.config = vllm_config.speculative_config.draft_model_config.hf_config


class Eagle3LlamaForCausalLM:
    def __init__(self, *, vllm_config):
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.model = LlamaModel(vllm_config)

    def load_weights(self, weights):
        model_weights = {}
        for name, loaded_weight in weights:
            model_weights[name] = loaded_weight
""",
            after="""\
import ascend_runtime.quarot


class LlamaModel:
    def __init__(self, vllm_config):
        self.config = vllm_config.speculative_config.draft_model_config.hf_config


class Eagle3LlamaForCausalLM:
    def __init__(self, *, vllm_config):
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.target_rotation = ascend_runtime.quarot.find_target_rotation(vllm_config)
        self.model = LlamaModel(vllm_config)

    def load_weights(self, weights):
        weights = ascend_runtime.quarot.adapt_draft_weights(self, weights)
        model_weights = {}
        for name, loaded_weight in weights:
            model_weights[name] = loaded_weight
""",
        ),
        Example(
            DEEPSEEK,
            before="""\
class Eagle3DeepseekV2ForCausalLM:
    def __init__(self, *, vllm_config):
        self.config = vllm_config.model_config.hf_config

    def load_weights(self, weights):
        return self.loader.load_weights(weights)
""",
            after=None,
        ),
    ],
)
