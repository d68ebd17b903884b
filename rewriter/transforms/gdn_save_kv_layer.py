"""Tell KV connectors of gated delta nets on NPUs.

Attention layers offer their KV cache to the connector when they have run;
gated delta nets do not, so a connector of Ascend's that sends layer by
layer never learns that theirs are ready, and counts too few layers. The
edit calls `ascend_runtime.gdn.after_core_attention` at the end of the
operator `gdn_attention_core`, which Qwen3-Next and Qwen3.5 share. It passes
the layer's own name, states and metadata. Inside the operator the call is
not traced by torch.compile, which would run it once, when it compiles.

Nothing is done off NPUs, where connectors expect one tensor for a layer and
get no states today, and nothing without a connector. States are not waited
for before the layer runs (`wait_for_layer_load`): connectors that load by
layer count the attention layers only.
"""

from rewriter.edits import In, insert_after
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/qwen3_next.py"

TRANSFORM = Transform(
    seed=("worker/8", "worker/19"),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("what connectors do with such states is Ascend's own"),
    remove_when="vLLM offers the states of Mamba-like layers to connectors",
    edits=[
        In(FILE, "gdn_attention_core").do(
            insert_after(
                "self._forward_core(...)", "ascend_runtime.gdn.after_core_attention(layer_name)"
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
from vllm.forward_context import get_forward_context


def gdn_attention_core(mixed_qkv, b, a, core_attn_out, layer_name):
    forward_context = get_forward_context()
    self = forward_context.no_compile_layers[layer_name]
    self._forward_core(
        mixed_qkv=mixed_qkv,
        b=b,
        a=a,
        core_attn_out=core_attn_out,
    )


def gdn_attention_core_fake(mixed_qkv, b, a, core_attn_out, layer_name):
    return
""",
            after="""\
import ascend_runtime.gdn

from vllm.forward_context import get_forward_context


def gdn_attention_core(mixed_qkv, b, a, core_attn_out, layer_name):
    forward_context = get_forward_context()
    self = forward_context.no_compile_layers[layer_name]
    self._forward_core(
        mixed_qkv=mixed_qkv,
        b=b,
        a=a,
        core_attn_out=core_attn_out,
    )
    ascend_runtime.gdn.after_core_attention(layer_name)


def gdn_attention_core_fake(mixed_qkv, b, a, core_attn_out, layer_name):
    return
""",
        ),
        Example(
            FILE,
            before="def gdn_attention_core(layer, x):\n    layer.forward_core(x)\n",
            after=None,
        ),
    ],
)
