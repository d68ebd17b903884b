"""Size the first attention output of Qwen3-Next for flash-comm.

With flash-comm, the Ascend plugin's sequence parallelism, output
projections scatter rows over the tensor-parallel ranks. A decoder layer
makes room for its attention's output in the shape of its input, which is
right while the input is scattered too. The first layer may be given all
rows, as with multimodal models, whose embeddings come from outside; then
the room is too large, and what was not written is added to the residual.
`ascend_runtime.sp.attn_output_buffer` makes it ceil(rows / ranks) there,
and is `torch.empty_like` everywhere else.

Which layer is the first of its pipeline stage, and whether flash-comm is
on, is noted by the two models when they are built: the index of a layer
does not tell, as the layers of a draft model count from 0 too, and a later
stage begins with another. Whether its input has all rows is seen by
comparing them with the positions.
"""

from rewriter.edits import In, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

NEXT = "vllm/model_executor/models/qwen3_next.py"
QWEN3_5 = "vllm/model_executor/models/qwen3_5.py"
MARK = insert_after(
    "self.start_layer, self.end_layer, self.layers = make_layers(...)",
    "ascend_runtime.sp.mark_first_layer(self.layers, self.start_layer)",
)

TRANSFORM = Transform(
    seed="worker/19",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("flash-comm is the plugin's own"),
    remove_when="the layers return the attention's output instead of writing it into a buffer",
    edits=[
        In(NEXT, "Qwen3NextDecoderLayer.forward").do(
            replace(
                "torch.empty_like(hidden_states)",
                "ascend_runtime.sp.attn_output_buffer(hidden_states, positions, self)",
            ),
        ),
        In(NEXT, "Qwen3NextModel.__init__").do(MARK),
        In(QWEN3_5, "Qwen3_5Model.__init__").do(MARK),
    ],
    examples=[
        Example(
            NEXT,
            before="""\
import torch


class Qwen3NextDecoderLayer:
    def forward(self, hidden_states, residual, positions=None):
        self_attention_output = torch.empty_like(hidden_states)
        self.self_attn(hidden_states=hidden_states, output=self_attention_output)
        return self_attention_output, torch.empty_like(residual)


class Qwen3NextModel:
    def __init__(self, config, get_layer, prefix):
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, get_layer, prefix=f"{prefix}.layers"
        )
        self.norm = torch.nn.Identity()
""",
            after="""\
import ascend_runtime.sp
import torch


class Qwen3NextDecoderLayer:
    def forward(self, hidden_states, residual, positions=None):
        self_attention_output = ascend_runtime.sp.attn_output_buffer(
            hidden_states, positions, self
        )
        self.self_attn(hidden_states=hidden_states, output=self_attention_output)
        return self_attention_output, torch.empty_like(residual)


class Qwen3NextModel:
    def __init__(self, config, get_layer, prefix):
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, get_layer, prefix=f"{prefix}.layers"
        )
        ascend_runtime.sp.mark_first_layer(self.layers, self.start_layer)
        self.norm = torch.nn.Identity()
""",
        ),
        Example(
            QWEN3_5,
            before="""\
class Qwen3_5Model:
    def __init__(self, config, get_layer):
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, get_layer
        )
""",
            after="""\
import ascend_runtime.sp


class Qwen3_5Model:
    def __init__(self, config, get_layer):
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, get_layer
        )
        ascend_runtime.sp.mark_first_layer(self.layers, self.start_layer)
""",
        ),
        Example(
            NEXT,
            before="""\
class Qwen3NextDecoderLayer:
    def forward(self, hidden_states, residual):
        return self.self_attn(hidden_states), residual


class Qwen3NextModel:
    pass
""",
            after=None,
        ),
    ],
)
