"""Merge multimodal embeddings by index assignment.

`masked_scatter_` is not usable on Ascend, and it accepts surplus embeddings
in silence. The index assignment that vLLM itself went to later gives the
same values, in place, and raises when the counts differ. One case would
slip through: a single embedding is broadcast over all placeholders. So the
counts are compared first where the mask is on the CPU and costs no
synchronisation; with a mask on the device that one case stays unseen.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/utils.py"

TRANSFORM = Transform(
    seed="worker/2",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/34246, in 0.20.0"),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(FILE, "_merge_multimodal_embeddings").do(
            replace(
                """
                inputs_embeds.masked_scatter_(
                    is_multimodal.unsqueeze(-1), mm_embeds_flat.to(dtype=input_dtype)
                )
                """,
                """
                # A mask on the CPU can be counted without a synchronization. Without the
                # check a single embedding would be broadcast over all placeholders.
                if is_multimodal.device.type == "cpu" and len(mm_embeds_flat) != int(
                    is_multimodal.sum()
                ):
                    raise RuntimeError("number of embeddings and placeholders differ")
                inputs_embeds[is_multimodal] = mm_embeds_flat.to(dtype=input_dtype)
                """,
                with_comments=True,
            ),
            replace(
                'ValueError("Error during masked scatter operation")',
                'ValueError("Error during index put operation")',
            ),
            fixed_by="inputs_embeds[is_multimodal] = mm_embeds_flat.to(dtype=input_dtype)",
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
def _merge_multimodal_embeddings(inputs_embeds, multimodal_embeddings, is_multimodal):
    try:
        # NOTE: This can avoid D2H sync
        inputs_embeds.masked_scatter_(
            is_multimodal.unsqueeze(-1), mm_embeds_flat.to(dtype=input_dtype)
        )
    except RuntimeError as e:
        raise ValueError("Error during masked scatter operation") from e
""",
            after="""\
def _merge_multimodal_embeddings(inputs_embeds, multimodal_embeddings, is_multimodal):
    try:
        # A mask on the CPU can be counted without a synchronization. Without the
        # check a single embedding would be broadcast over all placeholders.
        if is_multimodal.device.type == "cpu" and len(mm_embeds_flat) != int(
            is_multimodal.sum()
        ):
            raise RuntimeError("number of embeddings and placeholders differ")
        inputs_embeds[is_multimodal] = mm_embeds_flat.to(dtype=input_dtype)
    except RuntimeError as e:
        raise ValueError("Error during index put operation") from e
""",
        ),
        Example(
            FILE,
            before="""\
def _merge_multimodal_embeddings(inputs_embeds, multimodal_embeddings, is_multimodal):
    inputs_embeds.masked_scatter_(is_multimodal, mm_embeds_flat)
""",
            after=None,
        ),
    ],
)
