"""The names of 8-bit caches: where the model has them, and what it does not have."""

from __future__ import annotations

import logging

import pytest

from ascend_runtime import kv_scales
from ascend_runtime.kv_scales import remap_modelslim_name

SUFFIXES = [
    "fa_q.scale",
    "fa_k.scale",
    "fa_v.scale",
    "fa_q.offset",
    "fa_k.offset",
    "fa_v.offset",
    "indexer.q_rot",
    "indexer.k_rot",
]
LAYER = "model.layers.0.self_attn."


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_scales, "_told", set())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_deepest_name_that_the_model_has(suffix: str) -> None:
    names = [f"{LAYER}{middle}{suffix}" for middle in ("mla_attn.mla_attn.", "mla_attn.", "")]
    for n, expected in enumerate(names):
        assert remap_modelslim_name(names[-1], names[n:]) == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_mapped_names_stay(suffix: str) -> None:
    mapped = f"{LAYER}mla_attn.mla_attn.{suffix}"
    assert remap_modelslim_name(mapped, {mapped}) == mapped


def test_name_is_cut_at_the_last_occurrence() -> None:
    name, mapped = "fa_k.scale.fa_k.scale", "fa_k.scale.mla_attn.mla_attn.fa_k.scale"
    assert remap_modelslim_name(name, {mapped}) == mapped


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}k_scale",
        f"{LAYER}q_a_proj.weight",
        f"{LAYER}xfa_k.scale",
        f"{LAYER}fa_k.scale.weight",
        "rot.weight",
        "",
    ],
)
def test_other_names_stay_whatever_the_model_has(name: str) -> None:
    assert remap_modelslim_name(name, ()) == name


def test_what_the_model_lacks_is_skipped_with_one_warning_a_kind(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for layer in range(3):
            for suffix in SUFFIXES[:2]:
                assert remap_modelslim_name(f"model.layers.{layer}.{suffix}", {"x"}) is None
    assert [record.args for record in caplog.records] == [
        (f"model.layers.0.{suffix}", suffix) for suffix in SUFFIXES[:2]
    ]
    assert caplog.records[0].name == "vllm.ascend_runtime.kv_scales"
