"""W23: names of 8-bit caches are found by every loader, the predictor's too."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest
import torch
from mla_kit import LAYERS, main_model, predictor
from model_kit import engine_config, llama, one_rank
from patched_kit import forks
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.weight_utils import maybe_remap_kv_scale_name as remap
from vllm.model_executor.models import deepseek_mtp, deepseek_v2

NAME = "maybe_remap_kv_scale_name"


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        (
            "a.self_attn.fa_k.scale",
            ["a.self_attn.mla_attn.mla_attn.fa_k.scale"],
            "a.self_attn.mla_attn.mla_attn.fa_k.scale",
        ),
        (
            "a.self_attn.fa_v.offset",
            ["a.self_attn.mla_attn.fa_v.offset"],
            "a.self_attn.mla_attn.fa_v.offset",
        ),
        ("a.self_attn.indexer.q_rot", ["a.self_attn.indexer.q_rot"], "a.self_attn.indexer.q_rot"),
        (
            "a.self_attn.mla_attn.mla_attn.fa_k.scale",
            ["a.self_attn.mla_attn.mla_attn.fa_k.scale"],
            "a.self_attn.mla_attn.mla_attn.fa_k.scale",
        ),
        ("a.self_attn.fa_k.scale", [], None),
        ("a.self_attn.fa_k.scale", ["b.self_attn.fa_k.scale"], None),
    ],
)
def test_names(name: str, params: list[str], expected: str | None) -> None:
    assert remap(name, dict.fromkeys(params)) == expected


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("a.self_attn.k_scale", [], None),  # the monkey-patch raised AttributeError here
        ("a.kv_scale", [], None),
        ("a.self_attn.k_scale", ["a.self_attn.attn.k_scale"], "a.self_attn.attn.k_scale"),
        ("a.kv_scale", ["a.attn.k_scale"], "a.attn.k_scale"),
        (
            "a.self_attn.k_proj.k_scale",
            ["a.self_attn.mla_attn.mla_attn.k_scale"],
            "a.self_attn.mla_attn.mla_attn.k_scale",
        ),
        ("a.self_attn.q_proj.weight", [], "a.self_attn.q_proj.weight"),
        ("a.mlp.gate.weight_scale", [], "a.mlp.gate.weight_scale"),
    ],
)
def test_other_names_are_answered_as_before(name, params, expected) -> None:
    assert remap(name, dict.fromkeys(params)) == expected


class Cache(nn.Module):
    """What a quantization method adds to an attention layer for its 8-bit cache."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(shape))
        self.offset = nn.Parameter(torch.zeros(shape, dtype=torch.int8), requires_grad=False)


def loads(model: nn.Module, layer: int, attention: nn.Module) -> None:
    inner = attention.mla_attn.mla_attn
    inner.fa_q, inner.fa_k = Cache(2, 1), Cache(1, 1)
    attention.indexer = nn.Module()
    attention.indexer.q_rot = nn.Parameter(torch.zeros(3, 3))
    prefix = f"model.layers.{layer}.self_attn."
    weights = {
        f"{prefix}fa_q.scale": torch.full((2, 1), 3.0),
        f"{prefix}fa_k.scale": torch.full((1, 1), 5.0),
        f"{prefix}fa_k.offset": torch.full((1, 1), 7, dtype=torch.int8),
        f"{prefix}indexer.q_rot": torch.eye(3),
        f"{prefix}fa_v.scale": torch.ones(1, 1),  # not in this model
        f"{prefix}o_proj.weight": torch.ones(32, 16),
    }
    loaded = model.load_weights(iter(weights.items()))
    assert inner.fa_q.scale.tolist() == [[3], [3]]
    assert inner.fa_k.scale.item() == 5
    assert inner.fa_k.offset.item() == 7
    assert torch.equal(attention.indexer.q_rot, torch.eye(3))
    assert bool((attention.o_proj.weight == 1).all())
    assert len(loaded) == 5
    assert not any("fa_v" in name for name in loaded)


def test_main_model_loads_them(config) -> None:
    model = main_model(config)
    loads(model, 1, model.model.layers[1].self_attn)


def test_predictor_loads_them(config) -> None:
    """The monkey-patch reached the main model only."""
    model = predictor(config, None)
    loads(model, LAYERS, model.model.layers[str(LAYERS)].mtp_block.self_attn)


def importers(site) -> list[str]:
    """Modules that import the name from weight_utils, by any spelling."""
    found = []
    for path in sorted((site / "vllm").rglob("*.py")):
        text = path.read_text("utf-8")
        if NAME not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and any(a.name == NAME for a in node.names):
                assert (node.module or "").endswith("weight_utils"), path
                found.append(".".join(path.relative_to(site).with_suffix("").parts))
    return found


def test_all_importers_copy_the_edited_function(installed) -> None:
    """62 modules import it by name, none has one of its own."""
    modules = importers(installed.site)
    assert len(modules) == len(set(modules)) == 62
    assert {deepseek_v2.__name__, deepseek_mtp.__name__} <= set(modules)
    defined = [
        path
        for path in (installed.site / "vllm").rglob("*.py")
        if f"def {NAME}(" in path.read_text("utf-8")
    ]
    assert [path.name for path in defined] == ["weight_utils.py"]
    assert "ascend_runtime.kv_scales" in inspect.getsource(weight_utils)


ORDER = """
import builtins
before = builtins.__import__
from importlib import import_module
for name in {names}:
    module = import_module("vllm.model_executor.models." + name)
    mapped = module.maybe_remap_kv_scale_name("a.fa_k.scale", {{"a.mla_attn.fa_k.scale": 0}})
    print(mapped, end=" ")
print(builtins.__import__ is before)
"""


def test_any_order_of_imports_and_no_import_hook() -> None:
    names = ["deepseek_mtp", "deepseek_v2", "glm4_moe_lite", "llama"]
    jobs = {"forwards": ORDER.format(names=names), "backwards": ORDER.format(names=names[::-1])}
    expected = "a.mla_attn.fa_k.scale " * len(names) + "True\n"
    assert forks(jobs) == dict.fromkeys(jobs, expected)
