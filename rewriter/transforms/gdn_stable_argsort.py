"""Sort the token mask of gated delta nets as int32.

The tokens of a batch are parted into speculative and other ones by a stable
argsort of a bool mask. torch_npu before 2.10 has no argsort of bools. As
int32 the order is the same.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/attention/backends/gdn_attn.py"

TRANSFORM = Transform(
    seed="worker/7",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.pending("device neutral; torch_npu 2.10 no longer needs it"),
    remove_when="torch_npu 2.10 or later is required",
    edits=[
        In(FILE, "GDNAttentionMetadataBuilder.build").do(
            replace(
                "torch.argsort(spec_token_masks, stable=True)",
                "torch.argsort(spec_token_masks.to(torch.int32), stable=True)",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class GDNAttentionMetadataBuilder:
    def build(self, spec_token_masks, other):
        index = torch.argsort(spec_token_masks, stable=True)
        return index, torch.argsort(other, stable=True)
""",
            after="""\
class GDNAttentionMetadataBuilder:
    def build(self, spec_token_masks, other):
        index = torch.argsort(spec_token_masks.to(torch.int32), stable=True)
        return index, torch.argsort(other, stable=True)
""",
        ),
        Example(
            FILE,
            before="""\
class GDNAttentionMetadataBuilder:
    def build(self, spec_token_masks):
        return torch.argsort(spec_token_masks)
""",
            after=None,
        ),
    ],
)
