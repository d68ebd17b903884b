"""Work the chunks of gated delta nets out once in a step, on the host.

The chunked gated delta rule needs the list of chunks of a batch on the
device. Worked out there, it stalls the step: the number of chunks must come
back to the host. The builder of the metadata has the sequence lengths on
the host, so the edit asks `ascend_runtime.gdn.build_chunk_metadata` there,
for batches with prefills, and fills the fields that `gdn_chunk_metadata`
adds. One field more, `chunk_meta`, has all that the helper gave, for
kernels of the platform: with prefill context parallelism also where the
states of each sequence begin and which is its last.

All goes to the device in one copy that nothing waits for, out of pinned
memory allocated for it alone, so that builds in quick succession do not
write over each other. An empty sequence has no chunks.

This is done on every device: vLLM does it on all in 0.20.0, in copies out
of memory that is not pinned. Without `gdn_chunk_metadata` nobody reads the
result.
"""

from rewriter.edits import In, add_member, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/attention/backends/gdn_attn.py"

TRANSFORM = Transform(
    seed="worker/7a",
    tag="Hardware",
    vllm=">=0.18,<0.20",
    upstream=Upstream.inappropriate("0.20.0 fills the fields itself, but `chunk_meta`"),
    remove_when="the base is 0.20.0 or later, and no kernel for Ascend reads `chunk_meta`",
    edits=[
        In(FILE, "GDNAttentionMetadata").do(
            add_member(
                "chunk_meta: object | None = None  # for kernels of the platform",
                after="token_chunk_offset_ptr",
            ),
        ),
        In(FILE, "GDNAttentionMetadataBuilder.build").do(
            insert_before(
                "return attn_metadata",
                """
                if num_prefills > 0:
                    chunk_meta = ascend_runtime.gdn.build_chunk_metadata(
                        non_spec_query_start_loc_cpu, device=query_start_loc.device
                    )
                    attn_metadata.chunk_meta = chunk_meta
                    attn_metadata.chunk_indices = chunk_meta.chunk_indices
                    attn_metadata.chunk_offsets = chunk_meta.chunk_offsets
                """,
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
from dataclasses import dataclass


@dataclass
class GDNAttentionMetadata:
    num_prefills: int
    token_chunk_offset_ptr: torch.Tensor | None = None


class GDNAttentionMetadataBuilder:
    def build(self, num_prefills, query_start_loc, non_spec_query_start_loc_cpu):
        attn_metadata = GDNAttentionMetadata(num_prefills=num_prefills)
        return attn_metadata

    def build_for_cudagraph_capture(self, common_attn_metadata):
        attn_metadata = self.build(0, None, None)
        return attn_metadata
""",
            after="""\
from dataclasses import dataclass

import ascend_runtime.gdn


@dataclass
class GDNAttentionMetadata:
    num_prefills: int
    token_chunk_offset_ptr: torch.Tensor | None = None
    chunk_meta: object | None = None  # for kernels of the platform


class GDNAttentionMetadataBuilder:
    def build(self, num_prefills, query_start_loc, non_spec_query_start_loc_cpu):
        attn_metadata = GDNAttentionMetadata(num_prefills=num_prefills)
        if num_prefills > 0:
            chunk_meta = ascend_runtime.gdn.build_chunk_metadata(
                non_spec_query_start_loc_cpu, device=query_start_loc.device
            )
            attn_metadata.chunk_meta = chunk_meta
            attn_metadata.chunk_indices = chunk_meta.chunk_indices
            attn_metadata.chunk_offsets = chunk_meta.chunk_offsets
        return attn_metadata

    def build_for_cudagraph_capture(self, common_attn_metadata):
        attn_metadata = self.build(0, None, None)
        return attn_metadata
""",
        ),
        Example(
            FILE,
            before="""\
class GDNAttentionMetadata:
    token_chunk_offset_ptr: torch.Tensor | None = None


class GDNAttentionMetadataBuilder:
    def build(self, common_prefix_len, num_prefills):
        return GDNAttentionMetadata(num_prefills=num_prefills)
""",
            after=None,
        ),
    ],
)
