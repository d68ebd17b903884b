"""W14: Kimi-K2.5 interpolates its positions with the platform's compile backend."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import vllm.platforms
from patched_kit import fresh
from torch.nn.functional import interpolate
from vllm.model_executor.models import kimi_k25_vit

NAME = kimi_k25_vit.__name__


@pytest.fixture(scope="module")
def kimi() -> ModuleType:
    """The module, as imported on a platform that compiles small functions eagerly."""
    with pytest.MonkeyPatch.context() as patch:
        eager = SimpleNamespace(simple_compile_backend="eager")
        patch.setattr(vllm.platforms, "_current_platform", eager)
        return fresh(NAME)


def plain(weight: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The definition: interpolate, permute, flatten."""
    image = weight.permute(2, 0, 1).unsqueeze(0)
    resized = interpolate(image, size=shape, mode="bicubic")
    return resized.squeeze(0).permute(1, 2, 0).flatten(end_dim=1)


@pytest.fixture(scope="module")
def embedding(kimi: ModuleType) -> torch.nn.Module:
    torch.manual_seed(0)
    return kimi.Learnable2DInterpPosEmbDivided_fixed(14, 14, num_frames=4, dim=32)


@pytest.mark.parametrize("shape", [(20, 9), (3, 3), (28, 28)])
def test_values_are_those_of_a_plain_interpolation(kimi: ModuleType, shape) -> None:
    weight = torch.randn(14, 14, 32, generator=torch.Generator().manual_seed(1))
    result = kimi.get_rope_shape(weight, interpolation_mode="bicubic", shape=shape)
    assert result.shape == (shape[0] * shape[1], 32)
    assert (result - plain(weight, shape)).abs().max() == 0


def test_the_platforms_backend_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    platform = SimpleNamespace(simple_compile_backend=backend)
    monkeypatch.setattr(vllm.platforms, "_current_platform", platform)
    module = fresh(NAME)
    module.get_rope_shape(torch.randn(14, 14, 8), interpolation_mode="bicubic", shape=(5, 6))
    assert graphs


def test_own_size_is_not_interpolated(kimi, embedding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kimi, "get_rope_shape", None)
    output = embedding(torch.zeros(14 * 14, 32), torch.tensor([[1, 14, 14]]))
    assert torch.equal(output, embedding.weight.flatten(end_dim=1))


def test_frames_add_their_weights(embedding: torch.nn.Module) -> None:
    output = embedding(torch.zeros(3 * 20 * 9, 32), torch.tensor([[3, 20, 9]]))
    positions = plain(embedding.weight, (20, 9))
    expected = torch.cat([positions + embedding.time_weight[t] for t in range(3)])
    assert not torch.equal(embedding.time_weight[0], embedding.time_weight[1])
    assert (output - expected).abs().max() == 0


def test_several_images_in_one_call(embedding: torch.nn.Module) -> None:
    x = torch.randn(20 * 9 + 14 * 14, 32)
    output = embedding(x, torch.tensor([[1, 20, 9], [1, 14, 14]]))
    expected = torch.cat([plain(embedding.weight, (20, 9)), embedding.weight.flatten(end_dim=1)])
    assert torch.equal(output, x + expected)


def test_decorator_names_the_platforms_backend(installed) -> None:
    tree = ast.parse(Path(installed.site, "vllm/model_executor/models/kimi_k25_vit.py").read_text())
    (function,) = (n for n in tree.body if getattr(n, "name", "") == "get_rope_shape")
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    assert decorators == [
        "get_rope_shape_decorate",
        "torch.compile(dynamic=True, backend=current_platform.simple_compile_backend)",
    ]
