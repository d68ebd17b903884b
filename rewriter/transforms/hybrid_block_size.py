"""Size the blocks of hybrid attention-Mamba models as NPUs need them.

Ascend's attention kernels take 128 tokens at a time, where vLLM aligns the
block size of hybrid models to 16 (or 64, for MLA). And the Ascend model
runner lays the memory that attention and Mamba layers share out in three
regions, in which the keys of a block lie where its recurrent state lies: so
the keys of a block must be exactly as large as that state. The edit asks
`ascend_runtime.hybrid_kv` for the alignment, and lets it set block and page
sizes for that layout. 310P keeps vLLM's layout, with the alignment of 128;
hybrid models with MLA are refused there. Off NPUs nothing changes.

A block size that the user asks for is overridden, with a warning if it was
larger: any other would make blocks of different owners overlap. A model
whose state is not a multiple of 128 tokens' keys is refused, with the sizes
that would fit, and so is the Mamba cache mode "all", which chooses a block
size of its own. The leading states are all but the last, so models with
one state or four are planned rightly, and MLA, which keeps no values apart,
gets no room for them.

Known limits: a block may get large (1024 tokens for Qwen3-Next), and in
"align" mode vLLM wants `max_num_batched_tokens` to be at least that.
"""

from rewriter.edits import In, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/config.py"

TRANSFORM = Transform(
    seed="platform/2",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate(
        "0.20.0 takes the alignment from the platform (#37467); the layout is Ascend's own"
    ),
    remove_when="the base is 0.20.0, and the Ascend platform plans its own layout",
    monkey_patch_lines=95 + 103,
    edits=[
        In(FILE, "HybridAttentionMambaModelConfig.verify_and_update_config").do(
            replace(
                "kernel_block_alignment_size = 128 if use_cutlass_mla else 64",
                """
kernel_block_alignment_size = ascend_runtime.hybrid_kv.kernel_block_alignment(
    128 if use_cutlass_mla else 64, use_mla=True
)
""",
            ),
            replace(
                "kernel_block_alignment_size = 16",
                """
kernel_block_alignment_size = ascend_runtime.hybrid_kv.kernel_block_alignment(
    16
)
""",
            ),
            insert_after(
                """
if mamba_page_size == 0:
    return
""",
                """
if ascend_runtime.hybrid_kv.contiguous_layout():
    ascend_runtime.hybrid_kv.apply(vllm_config, model_cls, kv_cache_dtype)
    return
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class HybridAttentionMambaModelConfig(VerifyAndUpdateConfig):
    @classmethod
    def verify_and_update_config(cls, vllm_config):
        kv_cache_dtype = model_config.dtype
        model_cls = model_config.model_cls
        if model_config.use_mla:
            kernel_block_alignment_size = 128 if use_cutlass_mla else 64
        else:
            kernel_block_alignment_size = 16

        # skipped via config
        if mamba_page_size == 0:
            return

        return kernel_block_alignment_size


class MambaModelConfig(VerifyAndUpdateConfig):
    kernel_block_alignment_size = 16
""",
            after="""\
import ascend_runtime.hybrid_kv


class HybridAttentionMambaModelConfig(VerifyAndUpdateConfig):
    @classmethod
    def verify_and_update_config(cls, vllm_config):
        kv_cache_dtype = model_config.dtype
        model_cls = model_config.model_cls
        if model_config.use_mla:
            kernel_block_alignment_size = (
                ascend_runtime.hybrid_kv.kernel_block_alignment(
                    128 if use_cutlass_mla else 64, use_mla=True
                )
            )
        else:
            kernel_block_alignment_size = (
                ascend_runtime.hybrid_kv.kernel_block_alignment(16)
            )

        # skipped via config
        if mamba_page_size == 0:
            return
        if ascend_runtime.hybrid_kv.contiguous_layout():
            ascend_runtime.hybrid_kv.apply(vllm_config, model_cls, kv_cache_dtype)
            return

        return kernel_block_alignment_size


class MambaModelConfig(VerifyAndUpdateConfig):
    kernel_block_alignment_size = 16
""",
        ),
        Example(
            FILE,
            before="""\
class HybridAttentionMambaModelConfig(VerifyAndUpdateConfig):
    @classmethod
    def verify_and_update_config(cls, vllm_config):
        kernel_block_alignment_size = 32
""",
            after=None,
        ),
    ],
)
