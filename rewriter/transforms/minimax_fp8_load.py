"""Dequantize fp8 checkpoints of MiniMax-M2 while they are loaded.

On NPUs, which have no fp8 kernels, MiniMax-M2 has no quantization method,
and so no parameters for the fp8 blocks and scales of its checkpoints. The
edit lets the weights pass through `ascend_runtime.fp8_dequant`, which gives
each fp8 weight in bf16 as soon as its scales are there too. It is active
where the checkpoint is fp8 and the model is not, which no platform with a
fp8 method has. It is done where the whole checkpoint passes: the loader
below is called once for each run of names with a common prefix, which would
part a weight from its scales.

Known limit: the weights take twice the memory of the checkpoint.
"""

from rewriter.edits import In, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/minimax_m2.py"

TRANSFORM = Transform(
    seed="worker/17",
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("only a platform that cannot compute fp8 needs it"),
    remove_when="NPUs compute fp8, or MiniMax-M2 is published in 16 bits",
    edits=[
        In(FILE, "MiniMaxM2ForCausalLM.load_weights").do(
            insert_before(
                "loader = AutoWeightsLoader(self)",
                """
weights = ascend_runtime.fp8_dequant.maybe_dequantize(
    self.config, self.quant_config, weights
)
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class MiniMaxM2Model:
    def load_weights(self, weights):
        return dict(weights)


class MiniMaxM2ForCausalLM:
    def load_weights(self, weights):
        loader = AutoWeightsLoader(self)
        return loader.load_weights(weights)
""",
            after="""\
import ascend_runtime.fp8_dequant


class MiniMaxM2Model:
    def load_weights(self, weights):
        return dict(weights)


class MiniMaxM2ForCausalLM:
    def load_weights(self, weights):
        weights = ascend_runtime.fp8_dequant.maybe_dequantize(
            self.config, self.quant_config, weights
        )
        loader = AutoWeightsLoader(self)
        return loader.load_weights(weights)
""",
        ),
        Example(
            FILE,
            before="""\
class MiniMaxM2ForCausalLM:
    def load_weights(self, weights):
        loader = AutoWeightsLoader(self, skip_prefixes=["mtp."])
        return loader.load_weights(weights)
""",
            after=None,
        ),
    ],
)
