"""Streams and graphs under the names that each device has for them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from ascend_runtime import streams


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch):
    """`device(type, **names)` is the platform's; its module has just these names."""

    def use(kind: str, **names: object) -> None:
        platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type=kind))
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
        modules = {kind: SimpleNamespace(**names)}
        monkeypatch.setattr(torch, "get_device_module", modules.__getitem__)

    return use


@pytest.mark.parametrize("kind", ["cuda", "xpu", "npu"])
def test_stream_is_set_by_the_device(device, kind: str) -> None:
    seen: list[object] = []
    device(kind, set_stream=seen.append)
    streams.set_stream("s")
    assert seen == ["s"]


def test_cpu_has_one_stream_only(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cpu"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    before = torch.cpu.current_stream()
    streams.set_stream(torch.cpu.Stream())
    assert torch.cpu.current_stream() is before
    with pytest.raises(AttributeError):
        streams.new_graph()
    with pytest.raises(AttributeError):
        streams.graph(None)


@pytest.mark.parametrize(
    ("kind", "name"), [("cuda", "CUDAGraph"), ("xpu", "XPUGraph"), ("npu", "NPUGraph")]
)
def test_graph_of_the_device(device, kind: str, name: str) -> None:
    names = {"CUDAGraph": 1, "XPUGraph": 2, "NPUGraph": 3}
    classes = {each: lambda number=number: number for each, number in names.items()}
    device(kind, **classes, graph=lambda graph, pool: ("context", graph, pool))
    assert streams.new_graph() == names[name]
    assert streams.graph("g", "p") == ("context", "g", "p")
    assert streams.graph("g") == ("context", "g", None)
