"""Hand the chunks of gated delta nets to the kernels as arguments.

Each of the operations that make up the chunked gated delta rule works out
the list of chunks from the sequence lengths on the device, and waits for
the device to do so. With this edit the rule, its parts and the layer that
calls it take two optional tensors, `chunk_indices` and `chunk_offsets`, and
`GDNAttentionMetadata` has two fields for them, which Qwen3-Next, Qwen3.5
and OLMo-Hybrid pass on. Where they are None the list is worked out as
before. FlashInfer's kernel, which wants neither, is called without them,
and so is KDA.

0.20.0 has the same, and fills the fields in the builder. Here that is left
to `gdn_chunk_builder`. The new parameters are the last ones of each
function, so calls with positional arguments stay right. The tensors must
be for chunks of 64 tokens, as the rule's are.
"""

from rewriter.edit import Edit
from rewriter.edits import In, add_keyword, add_member, add_parameter, replace
from rewriter.transform import Example, Transform, Upstream

OPS = "vllm/model_executor/layers/fla/ops"
RULE = f"{OPS}/chunk.py"
QWEN = "vllm/model_executor/models/qwen3_next.py"
OLMO = "vllm/model_executor/models/olmo_hybrid.py"
BACKEND = "vllm/v1/attention/backends/gdn_attn.py"
INDICES = "chunk_indices: torch.Tensor | None = None"
OFFSETS = "chunk_offsets: torch.Tensor | None = None"
FIELDS = f"""
# The chunks of the sequences without drafts, for the chunked kernels.
{INDICES}  # shape: [num_chunks, 2]
{OFFSETS}  # shape: [batch - num_spec_decodes + 1,]
"""


def unless_given(size: str) -> Edit:
    """Work the chunks of `size` tokens out only where they are not given."""
    return replace(
        f"""
chunk_indices = (
    prepare_chunk_indices(cu_seqlens, {size}) if cu_seqlens is not None else None
)
""",
        f"""
if chunk_indices is None and cu_seqlens is not None:
    chunk_indices = prepare_chunk_indices(cu_seqlens, {size})
""",
    )


def both_parameters(after: str) -> tuple[Edit, Edit]:
    """Both parameters, behind the last one."""
    return add_parameter(INDICES, after=after), add_parameter(OFFSETS, after=after)


def both_keywords(call: str, owner: str = "") -> tuple[Edit, Edit]:
    """Give a call both arguments, as they are called in the attributes of `owner`."""
    return (
        add_keyword(call, chunk_indices=f"{owner}chunk_indices"),
        add_keyword(call, chunk_offsets=f"{owner}chunk_offsets"),
    )


def pass_indices(*calls: str) -> list[Edit]:
    """Give calls the indices."""
    return [add_keyword(f"{call}(...)", chunk_indices="chunk_indices") for call in calls]


APPLY = """
ChunkGatedDeltaRuleFunction.apply(
    q,
    k,
    v,
    g,
    beta,
    scale,
    initial_state,
    output_final_state,
    cu_seqlens,
    use_qk_l2norm_in_kernel,
    {}
)
"""

TRANSFORM = Transform(
    seed="worker/7a",
    tag="Core",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/38361, in 0.20.0"),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(BACKEND, "GDNAttentionMetadata").do(
            add_member(FIELDS, after="token_chunk_offset_ptr"),
        ),
        In(RULE, "chunk_gated_delta_rule_fwd").do(
            *both_parameters("cu_seqlens"),
            *pass_indices(
                "chunk_local_cumsum",
                "chunk_scaled_dot_kkt_fwd",
                "solve_tril",
                "recompute_w_u_fwd",
                "chunk_fwd_o",
            ),
            *both_keywords("chunk_gated_delta_rule_fwd_h(...)"),
        ),
        In(RULE, "ChunkGatedDeltaRuleFunction.forward").do(
            *both_parameters("use_qk_l2norm_in_kernel"),
            *both_keywords("chunk_gated_delta_rule_fwd(...)"),
        ),
        In(RULE, "chunk_gated_delta_rule").do(
            *both_parameters("use_qk_l2norm_in_kernel"),
            replace(APPLY.format(""), APPLY.format("chunk_indices, chunk_offsets,")),
        ),
        In(f"{OPS}/chunk_delta_h.py", "chunk_gated_delta_rule_fwd_h").do(
            *both_parameters("cu_seqlens"),
            unless_given("chunk_size"),
            replace(
                """
N, NT, chunk_offsets = (
    len(cu_seqlens) - 1,
    len(chunk_indices),
    prepare_chunk_offsets(cu_seqlens, BT),
)
""",
                """
N, NT = len(cu_seqlens) - 1, len(chunk_indices)
if chunk_offsets is None:
    chunk_offsets = prepare_chunk_offsets(cu_seqlens, BT)
""",
            ),
        ),
        In(f"{OPS}/chunk_o.py", "chunk_fwd_o").do(
            add_parameter(INDICES, after="chunk_size"), unless_given("BT")
        ),
        In(f"{OPS}/chunk_scaled_dot_kkt.py", "chunk_scaled_dot_kkt_fwd").do(
            add_parameter(INDICES, after="output_dtype"), unless_given("BT")
        ),
        In(f"{OPS}/cumsum.py", "chunk_local_cumsum_scalar").do(
            add_parameter(INDICES, after="output_dtype"), unless_given("BT")
        ),
        In(f"{OPS}/cumsum.py", "chunk_local_cumsum_vector").do(
            add_parameter(INDICES, after="output_dtype"), unless_given("chunk_size")
        ),
        In(f"{OPS}/cumsum.py", "chunk_local_cumsum").do(
            add_parameter(INDICES, after="output_dtype"),
            *pass_indices("chunk_local_cumsum_scalar", "chunk_local_cumsum_vector"),
        ),
        In(f"{OPS}/solve_tril.py", "solve_tril").do(
            add_parameter(INDICES, after="output_dtype"), unless_given("BT")
        ),
        In(f"{OPS}/wy_fast.py", "recompute_w_u_fwd").do(
            add_parameter(INDICES, after="cu_seqlens"), unless_given("BT")
        ),
        In(QWEN, "ChunkGatedDeltaRule.forward_cuda").do(
            *both_parameters("use_qk_l2norm_in_kernel"),
        ),
        In(QWEN, "ChunkGatedDeltaRule.forward_native").do(
            *both_parameters("use_qk_l2norm_in_kernel"),
            *both_keywords("fla_chunk_gated_delta_rule(...)"),
        ),
        In(QWEN, "Qwen3NextGatedDeltaNet._forward_core").do(
            *both_keywords("self.chunk_gated_delta_rule(...)", "attn_metadata."),
        ),
        In(OLMO, "OlmoHybridGatedDeltaNet._forward_core").do(
            *both_keywords("chunk_gated_delta_rule(...)", "attn_metadata."),
        ),
    ],
    examples=[
        Example(
            f"{OPS}/chunk_delta_h.py",
            before="""\
def chunk_gated_delta_rule_fwd_h(
    k: torch.Tensor,
    chunk_size: int = 64,
    cu_seqlens: torch.LongTensor | None = None,
) -> torch.Tensor:
    chunk_indices = (
        prepare_chunk_indices(cu_seqlens, chunk_size)
        if cu_seqlens is not None
        else None
    )
    # N: the number of sequences
    if cu_seqlens is None:
        N, NT, chunk_offsets = B, triton.cdiv(T, BT), None
    else:
        N, NT, chunk_offsets = (
            len(cu_seqlens) - 1,
            len(chunk_indices),
            prepare_chunk_offsets(cu_seqlens, BT),
        )
    return k.new_empty(B, NT)
""",
            after="""\
def chunk_gated_delta_rule_fwd_h(
    k: torch.Tensor,
    chunk_size: int = 64,
    cu_seqlens: torch.LongTensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    chunk_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    if chunk_indices is None and cu_seqlens is not None:
        chunk_indices = prepare_chunk_indices(cu_seqlens, chunk_size)
    # N: the number of sequences
    if cu_seqlens is None:
        N, NT, chunk_offsets = B, triton.cdiv(T, BT), None
    else:
        N, NT = len(cu_seqlens) - 1, len(chunk_indices)
        if chunk_offsets is None:
            chunk_offsets = prepare_chunk_offsets(cu_seqlens, BT)
    return k.new_empty(B, NT)
""",
        ),
        Example(
            QWEN,
            before="""\
def fi_chunk_gated_delta_rule(
    q: torch.Tensor,
    cu_seqlens: torch.LongTensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
):
    return chunk_gated_delta_rule_fi(q=q, cu_seqlens=cu_seqlens)


class ChunkGatedDeltaRule(CustomOp):
    def forward_cuda(
        self,
        q: torch.Tensor,
        cu_seqlens: torch.LongTensor | None = None,
        use_qk_l2norm_in_kernel: bool = True,
    ):
        return fi_chunk_gated_delta_rule(
            q=q,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )

    def forward_native(
        self,
        q: torch.Tensor,
        cu_seqlens: torch.LongTensor | None = None,
        use_qk_l2norm_in_kernel: bool = True,
    ):
        return fla_chunk_gated_delta_rule(
            q=q,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )


class Qwen3NextGatedDeltaNet(nn.Module, MambaBase):
    def _warmup_prefill_kernels(self, q):
        self.chunk_gated_delta_rule(
            q=q,
            cu_seqlens=torch.tensor([0, len(q)]),
        )

    def _forward_core(self, q, attn_metadata):
        return self.chunk_gated_delta_rule(
            q=q,
            cu_seqlens=attn_metadata.non_spec_query_start_loc,
        )
""",
            after="""\
def fi_chunk_gated_delta_rule(
    q: torch.Tensor,
    cu_seqlens: torch.LongTensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
):
    return chunk_gated_delta_rule_fi(q=q, cu_seqlens=cu_seqlens)


class ChunkGatedDeltaRule(CustomOp):
    def forward_cuda(
        self,
        q: torch.Tensor,
        cu_seqlens: torch.LongTensor | None = None,
        use_qk_l2norm_in_kernel: bool = True,
        chunk_indices: torch.Tensor | None = None,
        chunk_offsets: torch.Tensor | None = None,
    ):
        return fi_chunk_gated_delta_rule(
            q=q,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )

    def forward_native(
        self,
        q: torch.Tensor,
        cu_seqlens: torch.LongTensor | None = None,
        use_qk_l2norm_in_kernel: bool = True,
        chunk_indices: torch.Tensor | None = None,
        chunk_offsets: torch.Tensor | None = None,
    ):
        return fla_chunk_gated_delta_rule(
            q=q,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            chunk_indices=chunk_indices,
            chunk_offsets=chunk_offsets,
        )


class Qwen3NextGatedDeltaNet(nn.Module, MambaBase):
    def _warmup_prefill_kernels(self, q):
        self.chunk_gated_delta_rule(
            q=q,
            cu_seqlens=torch.tensor([0, len(q)]),
        )

    def _forward_core(self, q, attn_metadata):
        return self.chunk_gated_delta_rule(
            q=q,
            cu_seqlens=attn_metadata.non_spec_query_start_loc,
            chunk_indices=attn_metadata.chunk_indices,
            chunk_offsets=attn_metadata.chunk_offsets,
        )
""",
        ),
        Example(
            f"{OPS}/chunk_o.py",
            before="""\
def chunk_fwd_o(
    q: torch.Tensor,
    chunk_size: int = 64,
) -> torch.Tensor:
    chunk_indices = prepare_chunk_indices(cu_seqlens, 32)
    return chunk_indices
""",
            after=None,
        ),
    ],
)
