"""W14: random sampling is compiled with the platform's backend, as Kimi's interpolation is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import vllm.platforms
from patched_kit import fresh

NAME = "vllm.v1.sample.ops.topk_topp_sampler"


def sampled(monkeypatch: pytest.MonkeyPatch, backend: object) -> torch.Tensor:
    platform = SimpleNamespace(simple_compile_backend=backend)
    monkeypatch.setattr(vllm.platforms, "_current_platform", platform)
    logits = torch.full((3, 5), -1e9)
    logits[[0, 1, 2], [4, 0, 2]] = 1e9
    return fresh(NAME).compiled_random_sample(logits)


def test_the_platforms_backend_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    assert sampled(monkeypatch, backend).tolist() == [4, 0, 2]
    assert graphs


def test_eager_platform_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert sampled(monkeypatch, "eager").tolist() == [4, 0, 2]
