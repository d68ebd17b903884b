"""P8: MLAAttentionSpec describes the caches of sparse MLA layers, in place."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from patched_kit import forks
from vllm.v1.core.single_type_kv_cache_manager import (
    FullAttentionManager,
    get_manager_for_kv_cache_spec,
    spec_manager_map,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

SPARSE = {"sparse_head_dim": (512, 64, 128)}
C8 = {**SPARSE, "cache_sparse_c8": True}


def spec(**fields: object) -> MLAAttentionSpec:
    defaults = {"block_size": 128, "num_kv_heads": 1, "head_size": 704, "dtype": torch.bfloat16}
    return MLAAttentionSpec(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "page", "ratios", "parts"),
    [
        (SPARSE, 180224, (1.375, 11.0, 5.5, None), (131072, 16384, 32768)),
        (C8, 164096, (1.251953125, 10.015625, 10.015625, 641.0), (131072, 16384, 16384, 256)),
    ],
    ids=["plain", "C8"],
)
def test_sizes_of_a_block(fields, page, ratios, parts) -> None:
    sparse = spec(**fields)
    assert sparse.page_size_bytes == sparse.real_page_size_bytes == page
    assert sparse.sparse_kv_cache_ratio == ratios
    assert sparse.sparse_cache_bytes(1) == parts
    assert sum(parts) == page
    assert sparse.sparse_cache_bytes(7) == tuple(7 * part for part in parts)


@pytest.mark.parametrize("fields", [SPARSE, C8], ids=["plain", "C8"])
def test_every_head_has_its_parts(fields) -> None:
    one, two = spec(**fields), spec(**fields, num_kv_heads=2)
    assert two.sparse_cache_bytes(3) == tuple(2 * part for part in one.sparse_cache_bytes(3))
    assert two.page_size_bytes == 2 * one.page_size_bytes
    assert two.sparse_kv_cache_ratio == one.sparse_kv_cache_ratio


def test_defaults_are_upstreams() -> None:
    plain = spec(head_size=576, block_size=64)
    assert plain.page_size_bytes == 64 * 576 * 2
    assert spec(head_size=576, block_size=64, cache_dtype_str="fp8_ds_mla").page_size_bytes == 41984
    assert (plain.sparse_head_dim, plain.cache_sparse_c8) == (None, False)


@pytest.mark.parametrize("fields", [SPARSE, C8], ids=["plain", "C8"])
def test_padding(fields) -> None:
    assert spec(**fields, page_size_padded=200000).page_size_bytes == 200000
    with pytest.raises(AssertionError):
        _ = spec(**fields, page_size_padded=160000).page_size_bytes


@pytest.mark.parametrize("dims", [(512, 64, 96), (384, 96, 160), (7, 3, 5)])
@pytest.mark.parametrize("c8", [False, True])
def test_parts_sum_to_the_cache_for_odd_dimensions(dims: tuple[int, ...], c8: bool) -> None:
    odd = spec(head_size=sum(dims), sparse_head_dim=dims, cache_sparse_c8=c8)
    page = odd.page_size_bytes
    for blocks in range(1, 3001):
        assert sum(odd.sparse_cache_bytes(blocks)) == blocks * page


def test_parts_can_be_viewed_as_tensors() -> None:
    """What dividing by a float fails at: a raw cache cut into parts of whole elements."""
    odd = spec(head_size=640, sparse_head_dim=(384, 96, 160))
    raw = torch.zeros(11 * odd.page_size_bytes, dtype=torch.int8)
    for part, dim in zip(raw.split(odd.sparse_cache_bytes(11)), (384, 96, 160), strict=True):
        assert part.view(torch.bfloat16).view(11, 128, 1, dim).shape == (11, 128, 1, dim)


@pytest.mark.parametrize("fields", [{}, SPARSE, C8, {**C8, "page_size_padded": 200000}])
def test_merge_of_equal_specs_is_the_spec(fields) -> None:
    merged = MLAAttentionSpec.merge([spec(**fields), spec(**fields)])
    assert merged == spec(**fields)
    assert merged.page_size_bytes == spec(**fields).page_size_bytes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sparse_head_dim", (512, 64, 96)),
        ("cache_sparse_c8", False),
        ("c8_k_cache_dtype", torch.float8_e4m3fn),
        ("c8_k_scale_cache_dtype", torch.float32),
    ],
)
def test_merge_refuses_specs_that_disagree(field: str, value: object) -> None:
    with pytest.raises(AssertionError, match=f"must use the same {field}"):
        MLAAttentionSpec.merge([spec(**C8), spec(**{**C8, field: value})])


def test_merge_keeps_dtypes_of_c8() -> None:
    fields = {
        **C8,
        "c8_k_cache_dtype": torch.float8_e4m3fn,
        "c8_k_scale_cache_dtype": torch.float32,
    }
    assert MLAAttentionSpec.merge([spec(**fields)]) == spec(**fields)


def test_equality_and_hash() -> None:
    assert spec(**C8) == spec(**C8) != spec(**SPARSE)
    assert len({spec(**C8), spec(**C8), spec(**SPARSE), spec()}) == 3


def test_copies_keep_the_fields() -> None:
    sparse = spec(**C8)
    assert pickle.loads(pickle.dumps(sparse)) == sparse
    larger = sparse.copy_with_new_block_size(256)
    assert larger == spec(**C8, block_size=256)
    assert larger.page_size_bytes == 2 * sparse.page_size_bytes


def test_it_is_no_subclass() -> None:
    assert MLAAttentionSpec.__mro__[1] is FullAttentionSpec
    assert spec_manager_map[MLAAttentionSpec] is FullAttentionManager


def test_manager_is_found() -> None:
    pool = SimpleNamespace(null_block=None)
    manager = get_manager_for_kv_cache_spec(
        spec(**C8), block_pool=pool, enable_caching=False, kv_cache_group_id=0
    )
    assert type(manager) is FullAttentionManager


IDENTITY = """
import importlib
names = {names}
modules = [importlib.import_module("vllm." + name) for name in names]
print(len({{id(module.MLAAttentionSpec) for module in modules}}), end=" ")
manager = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
spec = modules[0].MLAAttentionSpec(
    block_size=1, num_kv_heads=1, head_size=704, dtype=__import__("torch").bfloat16,
    sparse_head_dim=(512, 64, 128), cache_sparse_c8=True,
)
print(manager.spec_manager_map[type(spec)].__name__, spec.page_size_bytes)
"""
IMPORTERS = [
    "v1.kv_cache_interface",
    "v1.core.single_type_kv_cache_manager",
    "model_executor.layers.attention.mla_attention",
    "model_executor.models.deepseek_v2",
    "model_executor.models.extract_hidden_states",
    "model_executor.models.config",
]


def test_every_importer_has_the_same_class_in_any_order() -> None:
    orders = {"forwards": IMPORTERS, "backwards": IMPORTERS[::-1]}
    jobs = {name: IDENTITY.format(names=order) for name, order in orders.items()}
    assert forks(jobs) == dict.fromkeys(jobs, "1 FullAttentionManager 1282\n")
