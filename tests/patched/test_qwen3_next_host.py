"""Qwen3-Next's and Qwen3.5's real models and connectors around gated delta nets."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gdn_kit as kit
import pytest
import torch
from test_gdn_layer import HIDDEN, NEXT, layer, projection, run
from torch import nn
from vllm.config import CompilationMode
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
from vllm.model_executor.models import qwen3_next

RANKS = 4


@pytest.fixture(scope="module")
def qwen3_5() -> ModuleType:
    return kit.qwen3_5()


def split(cls: type, hk: int, rows: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A layer with `hk` key heads, and what its `forward` makes of the projections."""
    made = layer(cls, 1)
    made.num_k_heads, made.key_dim = hk, hk * kit.DK
    made.in_proj_qkvz = projection(2 * (hk * kit.DK + kit.HV * kit.DV))
    seen: list[torch.Tensor] = []
    made._forward_core = lambda mixed_qkv, b, a, core_attn_out: seen.extend((mixed_qkv, b, a))
    made.norm = lambda x, z: (seen.append(z), x)[1]
    run(made, rows, rows)
    mixed, b, a, z = seen
    return made, (mixed, z.view(rows, kit.HV, kit.DV), b, a)


@pytest.mark.parametrize("hk", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_split_is_that_of_the_method_it_replaces(hk: int, rows: int) -> None:
    made, found = split(NEXT, hk, rows)
    hidden = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
    q, k, v, z, b, a = made.fix_query_key_value_ordering(
        made.in_proj_qkvz(hidden)[0], made.in_proj_ba(hidden)[0]
    )
    mixed = torch.cat([part.flatten(1) for part in (q, k, v)], dim=1)
    assert all(map(torch.equal, found, (mixed, z, b, a)))
    assert all(part.is_contiguous() for part in found)


def test_upstream_leaves_gaps_between_the_gates_of_one_key_head(base) -> None:
    _, (_, _, b, a) = split(kit.upstream(base.root).Qwen3NextGatedDeltaNet, 1, 3)
    assert a.stride() == b.stride() == (2 * kit.HV, 1)


def test_who_overrides_the_replaced_method_overrides_forward(installed) -> None:
    """Otherwise its override would no longer be called."""
    name, found = "fix_query_key_value_ordering", {}
    for file in Path(installed.site, "vllm").rglob("*.py"):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if f"def {name}" in text else ():
            if isinstance(node, ast.ClassDef):
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                if name in methods:
                    found[node.name] = "forward" in methods
    assert found == {"Qwen3NextGatedDeltaNet": True, "Qwen3_5GatedDeltaNet": True}


class Recorder(KVConnectorBase_V1):
    """A connector of vLLM's real base class that notes what it gets."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self._connector_metadata = object()

    def save_kv_layer(self, *call: object) -> None:
        self.calls.append(call)

    def wait_for_layer_load(self, *call: object) -> None:
        raise AssertionError("the load of states is not waited for")


Recorder.__abstractmethods__ = frozenset()


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", recorder)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    return recorder


def forward(made: nn.Module) -> None:
    made.kv_cache = ["states"]
    with kit.step([made], "metadata"):
        made(torch.ones(2, HIDDEN), torch.zeros(2, HIDDEN))


@pytest.mark.parametrize("model", ["next", "3.5"])
def test_real_connector_hears_of_a_layer_when_it_has_run(connector, qwen3_5, model: str) -> None:
    made = layer(NEXT if model == "next" else qwen3_5.Qwen3_5GatedDeltaNet, 1, "layers.3")
    made._forward_core = lambda **given: connector.calls.append("core")
    forward(made)
    assert connector.calls == ["core", ("layers.3", "states", "metadata")]


def test_real_connector_without_metadata_hears_nothing(connector) -> None:
    connector._connector_metadata = None
    forward(layer(NEXT, 1))
    assert connector.calls == []


class Attention(nn.Module):
    """Notes the room for its output, and fills it."""

    def __init__(self, rooms: list[int]) -> None:
        super().__init__()
        self.rooms = rooms

    def forward(self, hidden_states, output, **rest: object) -> None:
        self.rooms.append(len(output))
        output.fill_(1)


class TakeShare(nn.Module):
    """A norm that takes as many rows of the residual as it is given, as the plugin's does."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> object:
        return x if residual is None else (x, residual[: len(x)])


def decoder(kind: str, rooms: list[int]) -> nn.Module:
    made = qwen3_next.Qwen3NextDecoderLayer.__new__(qwen3_next.Qwen3NextDecoderLayer)
    nn.Module.__init__(made)
    made.layer_type, made.layer_scale = kind, False
    made.layer_idx = 0  # as draft layers have it: it is not asked
    name = "linear_attn" if kind == "linear_attention" else "self_attn"
    setattr(made, name, Attention(rooms))
    made.input_layernorm = made.post_attention_layernorm = TakeShare()
    made.mlp = nn.Identity()
    return made


@pytest.fixture
def rooms() -> list[int]:
    """The rows that each layer's attention had room for, in the order of the calls."""
    return []


@pytest.fixture(params=["next", "3.5"])
def build(request, qwen3_5, rooms, monkeypatch) -> Callable[[int], nn.ModuleList]:
    """`build(start)`: the layers of the real model, as built for a stage that begins at `start`."""
    module = qwen3_next if request.param == "next" else qwen3_5
    cls = getattr(module, "Qwen3_5Model", qwen3_next.Qwen3NextModel)
    kinds = ["linear_attention", "full_attention"] * 2
    monkeypatch.setattr(parallel_state, "_TP", SimpleNamespace(world_size=RANKS))
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1")

    def build(start: int) -> nn.ModuleList:
        layers = nn.ModuleList(decoder(kind, rooms) for kind in kinds)
        for name, stand_in in {
            "make_layers": lambda *args, **keywords: (start, 4, layers),
            "VocabParallelEmbedding": lambda *args, **keywords: None,
            "get_pp_group": lambda: SimpleNamespace(is_last_rank=False),
        }.items():
            monkeypatch.setattr(module, name, stand_in)
        text = SimpleNamespace(vocab_size=8, hidden_size=HIDDEN, num_hidden_layers=4)
        config = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=text),
            parallel_config=SimpleNamespace(eplb_config=SimpleNamespace(num_redundant_experts=0)),
            compilation_config=SimpleNamespace(mode=CompilationMode.NONE),
        )
        return cls(vllm_config=config, prefix="model").layers

    return build


def pass_through(layers: nn.ModuleList, tokens: int, given: int) -> None:
    hidden, residual = torch.zeros(given, HIDDEN), None
    for one in layers:
        hidden, residual = one(hidden, residual, torch.arange(tokens))


def test_first_layer_has_room_for_its_share(build, rooms) -> None:
    pass_through(build(0), tokens=9, given=9)
    assert rooms == [3, 3, 3, 3]


def test_first_layer_of_a_later_stage_has_too(build, rooms) -> None:
    pass_through(build(2)[2:], tokens=9, given=9)
    assert rooms == [3, 3]


def test_input_that_is_scattered_already_stays_so(build, rooms) -> None:
    pass_through(build(0), tokens=9, given=3)
    assert rooms == [3, 3, 3, 3]


def test_draft_layer_has_the_room_of_its_input(build, rooms) -> None:
    build(0)
    pass_through(nn.ModuleList([decoder("full_attention", rooms)]), tokens=9, given=9)
    assert rooms == [9]


@pytest.mark.parametrize(
    ("name", "value"), [("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0"), ("ASCEND_RUNTIME_DEVICE", "cuda")]
)
def test_room_without_flash_comm(build, rooms, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    pass_through(build(0), tokens=9, given=9)
    assert rooms == [9, 9, 9, 9]
