"""W5: an out-of-tree platform binds several KV caches to one layer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker import gpu_model_runner, utils
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.utils import bind_kv_cache

NAMES = [
    "model.layers.0.attn",
    "model.layers.1.attn",
    "draft_model.layers.0.attn",
    "draft_model.layers.1.attn",
]
KINDS = ("is_cuda_alike", "is_xpu", "is_cpu", "is_out_of_tree")


def bind(names: list[str], caches: dict, **options: int) -> list:
    """Bind caches to stand-ins for layers, and check that each layer has its own."""
    layers = {name: SimpleNamespace(kv_cache=[]) for name in names}
    bound: list = []
    bind_kv_cache(caches, layers, bound, **options)
    for name in names:
        (cache,) = layers[name].kv_cache
        assert cache is caches[name]
    return bound


def tensors(names: list[str]) -> dict:
    return {name: torch.zeros(1) for name in names}


def pairs(names: list[str]) -> dict:
    return {name: (torch.zeros(1), torch.zeros(1)) for name in names}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [tensors, pairs])
def test_all_caches_are_bound_in_the_order_of_layers(platform, kind: str, make) -> None:
    platform(utils, **{kind: lambda: True})
    caches = make(NAMES)
    main0, main1, draft0, draft1 = (caches[name] for name in NAMES)
    bound = bind(NAMES, caches)
    assert len(bound) == 4
    for cache, expected in zip(bound, (main0, draft0, main1, draft1), strict=True):
        assert cache is expected


def test_two_attention_modules_a_layer(platform) -> None:
    platform(utils, is_out_of_tree=lambda: True)
    names = [f"model.layers.{layer}.self_attn.{part}.attn" for layer in (1, 0) for part in (0, 1)]
    caches = tensors(names)
    bound = bind(names, caches, num_attn_module=2)
    order = [names[2], names[3], names[0], names[1]]
    assert [id(cache) for cache in bound] == [id(caches[name]) for name in order]


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0.self_attn.attn", "mtp.layers.0.self_attn.attn"],
        ["decoder.layers.0.self_attn.attn", "decoder.layers.0.encoder_attn.attn"],
    ],
    ids=["draft of Qwen3-Next", "cross attention"],
)
def test_no_cache_of_a_layer_is_lost(platform, names: list[str]) -> None:
    """The monkey-patch bound the first one alone."""
    platform(utils, is_out_of_tree=lambda: True)
    caches = tensors(names)
    assert [id(cache) for cache in bind(names, caches)] == [id(caches[name]) for name in names]


def test_other_platforms_still_refuse(platform) -> None:
    platform(utils, is_tpu=lambda: True)
    with pytest.raises(NotImplementedError):
        bind(NAMES, tensors(NAMES))


def test_one_cache_a_layer_asks_no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "current_platform", None)
    names = [f"layers.{layer}.self_attn" for layer in (20, 3, 28)]
    caches = tensors(names)
    bound = bind(names, caches)
    order = [names[1], names[0], names[2]]
    assert [id(cache) for cache in bound] == [id(caches[name]) for name in order]


def test_copies_by_name_are_the_edited_function() -> None:
    assert gpu_model_runner.bind_kv_cache is utils.bind_kv_cache
    assert attn_utils.bind_kv_cache is utils.bind_kv_cache
