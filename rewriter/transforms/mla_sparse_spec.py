"""Describe the caches of sparse MLA layers in the KV cache specification.

On NPUs a layer of sparse MLA attention (DeepSeek V3.2 and its kin) keeps
more than one tensor for each block: the latent part, the rotary part, the
indexer's keys and, where those are 8-bit ("C8"), their scales. The edit
gives `MLAAttentionSpec` the fields that say so, makes its page size right
for C8, has `merge` compare and keep the fields, and adds an exact split of
a cache's bytes into its parts (`sparse_cache_bytes`) beside the ratios that
the Ascend model runner divides by (`sparse_kv_cache_ratio`).

It is the same class as before, so every module that has imported it, and
every table that is keyed by it, knows the fields. Without them nothing
changes; padding and "fp8_ds_mla" pages stay upstream's.

Known limits: a ratio is a float, and dividing by it loses a byte for
dimensions that are no powers of two: prefer `sparse_cache_bytes`. Ratios
of a C8 cache need scales as large as the cache's elements.
"""

from rewriter.edits import In, add_keyword, add_member, insert_before
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/kv_cache_interface.py"
FIELDS = """
# Sparse attention: latent, rotary and indexer dimension of a token, and
# whether the indexer's keys are 8-bit, with a scale each.
sparse_head_dim: tuple[int, ...] | None = None
cache_sparse_c8: bool = False
c8_k_cache_dtype: torch.dtype = torch.int8
c8_k_scale_cache_dtype: torch.dtype = torch.float16
"""
PARTS = '''
def sparse_cache_bytes(self, num_blocks: int) -> tuple[int, ...]:
    """Bytes of each part of the cache of some blocks; C8 has a fourth part."""
    return ascend_runtime.mla_cache.spec_bytes(self, num_blocks)

@property
def sparse_kv_cache_ratio(self) -> tuple[float, float, float, float | None]:
    """How many times each part goes into the whole cache."""
    return ascend_runtime.mla_cache.spec_ratios(self)
'''
AGREE = """
for name in (
    "sparse_head_dim",
    "cache_sparse_c8",
    "c8_k_cache_dtype",
    "c8_k_scale_cache_dtype",
):
    assert len({getattr(spec, name) for spec in specs}) == 1, (
        "All attention layers in the same KV cache group must use the same "
        f"{name}."
    )
"""
MERGED = "cls(..., cache_dtype_str=cache_dtype_str_set.pop())"

TRANSFORM = Transform(
    seed="platform/8",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("only the Ascend model runner lays these caches out"),
    remove_when="vLLM lets a platform register KV cache specifications of its own",
    monkey_patch_lines=138,
    edits=[
        In(FILE, "MLAAttentionSpec").do(
            add_member(FIELDS, after="cache_dtype_str"),
            add_member(PARTS, after="real_page_size_bytes"),
        ),
        In(FILE, "MLAAttentionSpec.real_page_size_bytes").do(
            insert_before(
                """
if self.cache_dtype_str == "fp8_ds_mla":
    return self.block_size * 656
""",
                """
if self.cache_sparse_c8:
    return sum(self.sparse_cache_bytes(1))
""",
            ),
        ),
        In(FILE, "MLAAttentionSpec.merge").do(
            insert_before(f"return {MERGED}", AGREE),
            add_keyword(MERGED, sparse_head_dim="specs[0].sparse_head_dim"),
            add_keyword(MERGED, cache_sparse_c8="specs[0].cache_sparse_c8"),
            add_keyword(MERGED, c8_k_cache_dtype="specs[0].c8_k_cache_dtype"),
            add_keyword(MERGED, c8_k_scale_cache_dtype="specs[0].c8_k_scale_cache_dtype"),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    cache_dtype_str: str | None = None

    @property
    def real_page_size_bytes(self) -> int:
        if self.cache_dtype_str == "fp8_ds_mla":
            return self.block_size * 656
        return self.block_size

    @classmethod
    def merge(cls, specs):
        cache_dtype_str_set = set(spec.cache_dtype_str for spec in specs)
        return cls(
            block_size=specs[0].block_size,
            cache_dtype_str=cache_dtype_str_set.pop(),
        )
""",
            after="""\
from dataclasses import dataclass

import ascend_runtime.mla_cache
import torch


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    cache_dtype_str: str | None = None
    # Sparse attention: latent, rotary and indexer dimension of a token, and
    # whether the indexer's keys are 8-bit, with a scale each.
    sparse_head_dim: tuple[int, ...] | None = None
    cache_sparse_c8: bool = False
    c8_k_cache_dtype: torch.dtype = torch.int8
    c8_k_scale_cache_dtype: torch.dtype = torch.float16

    @property
    def real_page_size_bytes(self) -> int:
        if self.cache_sparse_c8:
            return sum(self.sparse_cache_bytes(1))
        if self.cache_dtype_str == "fp8_ds_mla":
            return self.block_size * 656
        return self.block_size

    def sparse_cache_bytes(self, num_blocks: int) -> tuple[int, ...]:
        \"""Bytes of each part of the cache of some blocks; C8 has a fourth part.\"""
        return ascend_runtime.mla_cache.spec_bytes(self, num_blocks)

    @property
    def sparse_kv_cache_ratio(self) -> tuple[float, float, float, float | None]:
        \"""How many times each part goes into the whole cache.\"""
        return ascend_runtime.mla_cache.spec_ratios(self)

    @classmethod
    def merge(cls, specs):
        cache_dtype_str_set = set(spec.cache_dtype_str for spec in specs)
        for name in (
            "sparse_head_dim",
            "cache_sparse_c8",
            "c8_k_cache_dtype",
            "c8_k_scale_cache_dtype",
        ):
            assert len({getattr(spec, name) for spec in specs}) == 1, (
                "All attention layers in the same KV cache group must use the same "
                f"{name}."
            )
        return cls(
            block_size=specs[0].block_size,
            cache_dtype_str=cache_dtype_str_set.pop(),
            sparse_head_dim=specs[0].sparse_head_dim,
            cache_sparse_c8=specs[0].cache_sparse_c8,
            c8_k_cache_dtype=specs[0].c8_k_cache_dtype,
            c8_k_scale_cache_dtype=specs[0].c8_k_scale_cache_dtype,
        )
""",
        ),
        Example(FILE, before="class MLAAttentionSpec:\n    pass\n", after=None),
    ],
)
