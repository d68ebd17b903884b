"""Let a plugin extend the attention metadata of the second model runner.

Attention backends of NPUs read more than vLLM's `CommonAttentionMetadata`
has: lengths on the host, the state of the batch, positions. The edit asks
`ascend_runtime.attn.common_metadata` for the class in the one function that
builds the metadata. On NPUs that is the subclass which the plugin has
registered (`ascend_runtime.attn.register_metadata`), with its fields filled
in; everywhere else, and without a registration, it is vLLM's class itself.

The batch is a parameter of the builder now, and both model states pass it,
so models of every kind keep the state class that vLLM gives them. The
drafting model's runner calls the same builder without a batch: there the
lengths on the host are the maximum, as it cannot know better.

Known limits: a prompt of one token counts as decoding, which reads the same
keys from the cache; so does a dummy batch of one token a request, which is
what captured decoding needs. A dummy batch of several tokens counts as
prompts.
"""

from rewriter.edits import In, add_keyword, add_parameter, insert_before, replace
from rewriter.transform import Example, Transform, Upstream

BUILDER = "vllm/v1/worker/gpu/attn_utils.py"
STATES = "vllm/v1/worker/gpu/model_states"
MAKER = """
make_metadata = ascend_runtime.attn.common_metadata(
    attn_groups, num_reqs, query_start_loc_cpu, max_seq_len, input_batch
)
"""

TRANSFORM = Transform(
    seed="worker/25",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the class is the plugin's"),
    remove_when="an attention backend can name its own metadata class",
    edits=[
        In(BUILDER, "build_attn_metadata").do(
            add_parameter("input_batch: InputBatch | None = None", after="encoder_seq_lens"),
            insert_before("attn_metadata: dict[str, Any] = {}", MAKER),
            replace("CommonAttentionMetadata", "make_metadata"),
            imports="from vllm.v1.worker.gpu.input_batch import InputBatch",
            drops="from vllm.v1.attention.backend import CommonAttentionMetadata",
        ),
        In(f"{STATES}/default.py", "DefaultModelState.prepare_attn").do(
            add_keyword("build_attn_metadata(...)", input_batch="input_batch"),
        ),
        In(f"{STATES}/whisper.py", "WhisperModelState.prepare_attn").do(
            add_keyword("build_attn_metadata(...)", input_batch="input_batch"),
        ),
    ],
    examples=[
        Example(
            f"{STATES}/default.py",
            before="""\
class DefaultModelState:
    def prepare_attn(self, input_batch):
        return build_attn_metadata(
            num_reqs=input_batch.num_reqs,
        )
""",
            after="""\
class DefaultModelState:
    def prepare_attn(self, input_batch):
        return build_attn_metadata(
            num_reqs=input_batch.num_reqs,
            input_batch=input_batch,
        )
""",
        ),
        Example(
            BUILDER,
            before="""\
def build_attn_metadata(attn_groups, encoder_seq_lens=None):
    attn_metadata: dict[str, Any] = {}
    return attn_metadata
""",
            after=None,
        ),
    ],
)
