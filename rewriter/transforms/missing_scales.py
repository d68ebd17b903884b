"""Skip cache scales that a model does not have.

For the scale of a KV cache that the model has no parameter for,
`maybe_remap_kv_scale_name` warns and answers None, and the loader is to
skip it. Four loaders ask in a loop inside the loop over the weights, so
their `continue` skips too little, and None is counted as a loaded
parameter: the check of DeepSeek's multi-token predictor then fails with
AttributeError, the others return None among the names. They leave it out
now, as deepseek_v2.py does. openPangu looks at the end of the name before
it looks for None, and fails in the same way; the order is turned round.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

MODELS = "vllm/model_executor/models/"
LOADERS = {
    "AXK1": "AXK1ForCausalLM",
    "deepseek_mtp": "DeepSeekMTP",
    "glm4_moe_lite": "Glm4MoeLiteModel",
    "glm4_moe_lite_mtp": "Glm4MoeLiteMTP",
}
COUNTED = """
if {}not is_fusion_moe_shared_experts_layer:
    loaded_params.add(name)
"""
BIAS = """\
if name.endswith("e_score_correction_bias"):
    name = name.replace(
        "e_score_correction_bias", "gate.e_score_correction_bias"
    )
"""
SKIP = """\
if name is None:
    continue
"""

TRANSFORM = Transform(
    seed="worker/23",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("deepseek_v2.py has it already"),
    remove_when="upstream's loaders skip the scales that a model does not have",
    edits=[
        *(
            In(f"{MODELS}{file}.py", f"{cls}.load_weights").do(
                replace(COUNTED.format(""), COUNTED.format("name is not None and "))
            )
            for file, cls in LOADERS.items()
        ),
        In(f"{MODELS}openpangu.py", "OpenPanguModel.load_weights").do(
            replace(BIAS + SKIP, SKIP + BIAS),
        ),
    ],
    examples=[
        Example(
            f"{MODELS}deepseek_mtp.py",
            before="""\
class DeepSeekMTP:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            for j in range(num_chunks):
                name = maybe_remap_kv_scale_name(name, params_dict)
                if name is None:
                    continue
                if not is_fusion_moe_shared_experts_layer:
                    name = name_mapped
            if not is_fusion_moe_shared_experts_layer:
                loaded_params.add(name)
        return loaded_params
""",
            after="""\
class DeepSeekMTP:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            for j in range(num_chunks):
                name = maybe_remap_kv_scale_name(name, params_dict)
                if name is None:
                    continue
                if not is_fusion_moe_shared_experts_layer:
                    name = name_mapped
            if name is not None and not is_fusion_moe_shared_experts_layer:
                loaded_params.add(name)
        return loaded_params
""",
        ),
        Example(
            f"{MODELS}openpangu.py",
            before="""\
class OpenPanguModel:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            name = maybe_remap_kv_scale_name(name, params_dict)
            if name.endswith("e_score_correction_bias"):
                name = name.replace(
                    "e_score_correction_bias", "gate.e_score_correction_bias"
                )
            if name is None:
                continue
            loaded_params.add(name)
""",
            after="""\
class OpenPanguModel:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            name = maybe_remap_kv_scale_name(name, params_dict)
            if name is None:
                continue
            if name.endswith("e_score_correction_bias"):
                name = name.replace(
                    "e_score_correction_bias", "gate.e_score_correction_bias"
                )
            loaded_params.add(name)
""",
        ),
        Example(
            f"{MODELS}glm4_moe_lite.py",
            before="""\
class Glm4MoeLiteModel:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            loaded_params.add(name)
""",
            after=None,
        ),
    ],
)
