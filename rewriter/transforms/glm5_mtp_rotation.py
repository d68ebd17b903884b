"""Rotate the hidden states of a quantized GLM-5 back for its predictor.

Ascend's quantizer can rotate the hidden states of GLM-5, but not those of
its multi-token predictor. The checkpoint then has one more tensor,
`rot.weight`, which maps them back. The predictor gets a linear layer for it,
iff the target is a GLM-5 whose quantization description says that a
rotation is used, and applies it to the states that it takes in. There is
one, which all of its layers share, as there is one tensor.

The main model skips the tensor, with or without a predictor beside it; so
does a predictor that was told of no rotation. One that was told of it, but
finds no tensor, refuses to load.

Known limit: with more than one speculative token the predictor takes in its
own output from the second one on, and that is rotated too. Whether it
should be is a question to the makers of such checkpoints.
"""

from rewriter.edits import In, insert_after, insert_before
from rewriter.transform import Example, Transform, Upstream

MAIN = "vllm/model_executor/models/deepseek_v2.py"
MTP = "vllm/model_executor/models/deepseek_mtp.py"

TRANSFORM = Transform(
    seed="worker/21",
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the tensor is one of Ascend's quantizer"),
    remove_when="Ascend's quantizer no longer rotates GLM-5 without its predictor",
    edits=[
        In(MAIN, "get_spec_layer_idx_from_weight_name").do(
            insert_after(
                "layer_idx = config.num_hidden_layers",
                """
if weight_name == "rot.weight":
    return layer_idx
""",
            ),
        ),
        In(MAIN, "DeepseekV2ForCausalLM.load_weights").do(
            insert_after(
                """
if "rotary_emb.inv_freq" in name:
    continue
""",
                """
if name == "rot.weight":
    continue  # of the predictor, which may not be in use
""",
            ),
        ),
        In(MTP, "DeepSeekMultiTokenPredictor.__init__").do(
            insert_after(
                "self.logits_processor = LogitsProcessor(config.vocab_size)",
                "self.rot = ascend_runtime.mtp_rotation.build(vllm_config, config.hidden_size)",
            ),
        ),
        In(MTP, "DeepSeekMultiTokenPredictor.forward").do(
            insert_before(
                "current_step_idx = spec_step_idx % self.num_mtp_layers",
                """
if self.rot is not None:
    previous_hidden_states = self.rot(previous_hidden_states)
""",
            ),
        ),
        In(MTP, "DeepSeekMTP.load_weights").do(
            insert_after(
                "name = self._rewrite_spec_layer_name(spec_layer, name)",
                """
if name == "model.rot.weight" and self.model.rot is None:
    continue
""",
            ),
            insert_before(
                "return loaded_params",
                "ascend_runtime.mtp_rotation.check_loaded(self.model.rot, loaded_params)",
            ),
        ),
        In(MTP, "DeepSeekMTP._rewrite_spec_layer_name").do(
            insert_before(
                "spec_layer_weight_names = ...",
                """
if name == "rot.weight":
    return "model.rot.weight"
""",
            ),
        ),
    ],
    examples=[
        Example(
            MAIN,
            before="""\
class DeepseekV2ForCausalLM:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            if "rotary_emb.inv_freq" in name:
                continue

            spec_layer = get_spec_layer_idx_from_weight_name(self.config, name)


def get_spec_layer_idx_from_weight_name(config, weight_name):
    if config.num_nextn_predict_layers > 0:
        layer_idx = config.num_hidden_layers
        for i in range(config.num_nextn_predict_layers):
            if weight_name.startswith(f"model.layers.{layer_idx + i}."):
                return layer_idx + i
    return None
""",
            after="""\
class DeepseekV2ForCausalLM:
    def load_weights(self, weights):
        for name, loaded_weight in weights:
            if "rotary_emb.inv_freq" in name:
                continue
            if name == "rot.weight":
                continue  # of the predictor, which may not be in use

            spec_layer = get_spec_layer_idx_from_weight_name(self.config, name)


def get_spec_layer_idx_from_weight_name(config, weight_name):
    if config.num_nextn_predict_layers > 0:
        layer_idx = config.num_hidden_layers
        if weight_name == "rot.weight":
            return layer_idx
        for i in range(config.num_nextn_predict_layers):
            if weight_name.startswith(f"model.layers.{layer_idx + i}."):
                return layer_idx + i
    return None
""",
        ),
        Example(
            MTP,
            before="""\
class DeepSeekMultiTokenPredictor(nn.Module):
    def __init__(self, *, vllm_config):
        config = vllm_config.model_config.hf_config
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def forward(self, input_ids, previous_hidden_states, spec_step_idx: int = 0):
        current_step_idx = spec_step_idx % self.num_mtp_layers
        return self.layers[str(current_step_idx)](input_ids, previous_hidden_states)

    def compute_logits(self, hidden_states, spec_step_idx: int = 0):
        current_step_idx = spec_step_idx % self.num_mtp_layers
        return self.layers[str(current_step_idx)].shared_head(hidden_states)


class DeepSeekMTP(nn.Module):
    def load_weights(self, weights):
        loaded_params = set()
        for name, loaded_weight in weights:
            name = self._rewrite_spec_layer_name(spec_layer, name)
            loaded_params.add(name)
        return loaded_params

    def _rewrite_spec_layer_name(self, spec_layer: int, name: str) -> str:
        spec_layer_weight_names = ["embed_tokens", "enorm"]
        return name
""",
            after="""\
import ascend_runtime.mtp_rotation


class DeepSeekMultiTokenPredictor(nn.Module):
    def __init__(self, *, vllm_config):
        config = vllm_config.model_config.hf_config
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.rot = ascend_runtime.mtp_rotation.build(vllm_config, config.hidden_size)

    def forward(self, input_ids, previous_hidden_states, spec_step_idx: int = 0):
        if self.rot is not None:
            previous_hidden_states = self.rot(previous_hidden_states)
        current_step_idx = spec_step_idx % self.num_mtp_layers
        return self.layers[str(current_step_idx)](input_ids, previous_hidden_states)

    def compute_logits(self, hidden_states, spec_step_idx: int = 0):
        current_step_idx = spec_step_idx % self.num_mtp_layers
        return self.layers[str(current_step_idx)].shared_head(hidden_states)


class DeepSeekMTP(nn.Module):
    def load_weights(self, weights):
        loaded_params = set()
        for name, loaded_weight in weights:
            name = self._rewrite_spec_layer_name(spec_layer, name)
            if name == "model.rot.weight" and self.model.rot is None:
                continue
            loaded_params.add(name)
        ascend_runtime.mtp_rotation.check_loaded(self.model.rot, loaded_params)
        return loaded_params

    def _rewrite_spec_layer_name(self, spec_layer: int, name: str) -> str:
        if name == "rot.weight":
            return "model.rot.weight"
        spec_layer_weight_names = ["embed_tokens", "enorm"]
        return name
""",
        ),
        Example(
            MAIN,
            before="""\
class DeepseekV2ForCausalLM:
    def load_weights(self, weights):
        return self.loader.load_weights(weights)


def get_spec_layer_idx_from_weight_name(config, weight_name):
    return config.layer_of(weight_name)
""",
            after=None,
        ),
    ],
)
