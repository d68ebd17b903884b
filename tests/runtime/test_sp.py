"""Room for the output of the attention that runs first in a pipeline stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ascend_runtime import sp


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.ModuleList]:
    """Four layers, of which a stage runs those from `start`, built with flash-comm on or off."""

    def build(start: int, ranks: int = 4, on: bool = True) -> nn.ModuleList:
        monkeypatch.setattr(sp, "enabled", lambda: on)
        monkeypatch.setattr(sp, "_ranks", lambda: ranks)
        layers = nn.ModuleList(nn.Identity() for _ in range(4))
        sp.mark_first_layer(layers, start)
        monkeypatch.setattr(sp, "enabled", lambda: pytest.fail("asked in the forward pass"))
        return layers

    return build


def rows(layer: nn.Module, tokens: int, given: int, **changed: object) -> int:
    """The rows of the output for `given` rows of input, where there are `tokens` positions."""
    hidden = torch.empty(given, 3, dtype=torch.bfloat16)
    arguments = {"positions": torch.arange(tokens), **changed}
    out = sp.attn_output_buffer(hidden, layer=layer, **arguments)
    assert out.dtype == hidden.dtype and out.device == hidden.device
    assert out.shape[1:] == hidden.shape[1:]
    assert out.data_ptr() != hidden.data_ptr()
    return len(out)


@pytest.mark.parametrize(("tokens", "share"), [(8, 2), (9, 3), (1, 1), (4, 1), (1001, 251)])
def test_first_layer_has_room_for_its_share(built, tokens: int, share: int) -> None:
    layers = built(0)
    assert rows(layers[0], tokens, tokens) == share
    assert [rows(layer, tokens, tokens) for layer in layers[1:]] == 3 * [tokens]


def test_first_layer_of_a_later_stage(built) -> None:
    layers = built(2)
    assert [rows(layer, 8, 8) for layer in layers] == [8, 8, 2, 8]


def test_stage_without_layers(built) -> None:
    assert [rows(layer, 8, 8) for layer in built(4)] == 4 * [8]


def test_layer_of_a_draft_model_that_counts_from_0(built) -> None:
    draft = nn.Identity()
    draft.layer_idx = built(0)[0].layer_idx = 0
    assert rows(draft, 8, 8) == 8


def test_input_that_is_scattered_already(built) -> None:
    first = built(0)[0]
    assert rows(first, 8, 2) == 2
    assert rows(first, 9, 3) == 3


def test_positions_of_three_kinds_and_none(built) -> None:
    first = built(0)[0]
    assert rows(first, 8, 8, positions=torch.zeros(3, 8)) == 2
    assert rows(first, 8, 3, positions=torch.zeros(3, 8)) == 3
    assert rows(first, 8, 8, positions=None) == 8


def test_off_it_is_what_upstream_calls(built, monkeypatch) -> None:
    layers = built(0, on=False)
    made = []
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: made.append((a, k)) or "made")
    hidden = torch.empty(8, 3)
    assert sp.attn_output_buffer(hidden, torch.arange(8), layers[0]) == "made"
    assert made == [((hidden,), {})]


@pytest.mark.parametrize("on", [True, False])
def test_compiled_for_any_number_of_tokens(built, on: bool) -> None:
    torch._dynamo.reset()
    first, second = built(0, on=on)[:2]
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def shapes(hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = sp.attn_output_buffer(hidden, positions, first)
        return one, sp.attn_output_buffer(one, positions, second)

    for tokens in (8, 9, 30):
        out = shapes(torch.empty(tokens, 3), torch.arange(tokens))
        share = -(-tokens // 4) if on else tokens
        assert [len(x) for x in out] == [share, share]
    assert len(graphs) == 1
