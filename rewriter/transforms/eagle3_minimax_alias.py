"""Register the Eagle-3 architecture name of MiniMax-M2 drafts.

vLLM derives the architecture `Eagle3MiniMaxM2ForCausalLM` from a draft
whose base architecture is `MiniMaxM2ForCausalLM`, but the registry does not
know it. It is the shared Llama implementation, as for the other targets.
The entry is in the dict itself, before the registry is computed from it.

A pull request also needs an example of the architecture in vLLM's
tests/models/registry.py, without which its own test of the registry fails;
sdists are edited below vllm/ only.
"""

from rewriter.edits import In, add_entry
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/registry.py"

TRANSFORM = Transform(
    seed="platform/7",
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/37512, in 0.20.0"),
    remove_when="the base is 0.20.0 or later",
    monkey_patch_lines=282,
    edits=[
        In(FILE, "_SPECULATIVE_DECODING_MODELS").do(
            add_entry(
                "_SPECULATIVE_DECODING_MODELS",
                key='"Eagle3MiniMaxM2ForCausalLM"',
                value='("llama_eagle3", "Eagle3LlamaForCausalLM")',
                after='"Eagle3Qwen3vlForCausalLM"',
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
_SPECULATIVE_DECODING_MODELS = {
    "Eagle3Qwen3vlForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "EagleMistralLarge3ForCausalLM": (
        "mistral_large_3_eagle",
        "EagleMistralLarge3ForCausalLM",
    ),
}
""",
            after="""\
_SPECULATIVE_DECODING_MODELS = {
    "Eagle3Qwen3vlForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Eagle3MiniMaxM2ForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "EagleMistralLarge3ForCausalLM": (
        "mistral_large_3_eagle",
        "EagleMistralLarge3ForCausalLM",
    ),
}
""",
        ),
    ],
)
