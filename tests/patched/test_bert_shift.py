"""W3: BERT token types are packed without shifts, and the values stay what they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule
from vllm.model_executor.models import bert, ernie, roberta
from vllm.model_executor.models.bert import _decode_token_type_ids as decode
from vllm.model_executor.models.bert import _encode_token_type_ids as encode

SHIFT = 30
IDS = [0, 101, 30521, 250001, 7, 0]
BOTH = pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)


def shifted_encode(ids: torch.Tensor, types: torch.Tensor) -> None:
    """The definition, by shifts."""
    ids[: types.shape[0]] |= types << SHIFT


def shifted_decode(ids: torch.Tensor) -> torch.Tensor:
    """The definition, by shifts."""
    mask = torch.ones_like(ids, dtype=torch.int32) << SHIFT
    types = (ids & mask) >> SHIFT
    ids &= ~mask
    return types


def both_ways(ids: list[int], types: list[int], dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """Encode and decode by vLLM and by shifts, and return vLLM's ids and types."""
    mine, theirs = torch.tensor(ids, dtype=dtype), torch.tensor(ids, dtype=dtype)
    encode(mine, torch.tensor(types, dtype=dtype))
    shifted_encode(theirs, torch.tensor(types, dtype=dtype))
    assert torch.equal(mine, theirs)
    mine_types, their_types = decode(mine), shifted_decode(theirs)
    assert mine_types.dtype == their_types.dtype == dtype
    assert torch.equal(mine_types, their_types)
    assert torch.equal(mine, theirs)
    return mine.tolist(), mine_types.tolist()


@BOTH
def test_round_trip(dtype: torch.dtype) -> None:
    assert both_ways(IDS, [0, 1, 1, 0, 1], dtype) == (IDS, [0, 1, 1, 0, 1, 0])


@BOTH
def test_encoding_is_in_place_in_bit_thirty(dtype: torch.dtype) -> None:
    ids = torch.tensor(IDS, dtype=dtype)
    assert encode(ids, torch.tensor([0, 1, 1, 0, 1], dtype=dtype)) is None
    assert ids.tolist() == [0, 101 + 2**30, 30521 + 2**30, 250001, 7 + 2**30, 0]


@BOTH
def test_padding_id_decodes_as_it_always_has(dtype: torch.dtype) -> None:
    assert both_ways([-1, 5], [], dtype) == ([-1073741825, 5], [1, 0])
    assert both_ways([-1073741825, 5], [], dtype) == ([-1073741825, 5], [0, 0])
    assert both_ways([-1], [1], dtype) == ([-1073741825], [1])


def test_types_of_more_than_one_bit_do_not_fit_and_never_did() -> None:
    assert both_ways([9, 9, 9], [2, 3, 1], torch.int32) == (
        [9 - 2**31, 9 - 2**31, 9],
        [0, 1, 1],
    )
    assert both_ways([9, 9], [2, 3], torch.int64) == ([9 + 2**31, 9 + 2**31], [0, 1])


def test_masks_are_where_the_ids_are() -> None:
    ids = torch.zeros(3, dtype=torch.int64, device="meta")
    types = decode(ids)
    assert (types.device.type, types.dtype, types.shape) == ("meta", torch.int64, (3,))


INT32 = st.integers(-(2**31), 2**31 - 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(INT32, min_size=1, max_size=40), st.lists(st.integers(-4, 4), max_size=40))
def test_any_values_are_as_with_shifts(ids: list[int], types: list[int]) -> None:
    for dtype in (torch.int32, torch.int64):
        both_ways(ids, types[: len(ids)], dtype)


def compiled(function, *arguments: torch.Tensor):
    """Compile the whole function and return its graphs and its result."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, inputs: list[torch.Tensor]):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    result = torch.compile(function, fullgraph=True, backend=backend)(*arguments)
    return graphs, result


def operations(graphs: list[GraphModule]) -> set[str]:
    return {str(getattr(n.target, "__name__", n.target)) for g in graphs for n in g.graph.nodes}


def test_compiled_functions_are_one_graph_without_shifts() -> None:
    ids = torch.tensor(IDS, dtype=torch.int32)
    graphs, _ = compiled(encode, ids, torch.tensor([0, 1, 1, 0, 1], dtype=torch.int32))
    assert len(graphs) == 1
    assert "bitwise_or_" in operations(graphs)
    assert not any("shift" in name for name in operations(graphs))
    graphs, types = compiled(decode, ids)
    assert len(graphs) == 1
    assert "bitwise_and" in operations(graphs)
    assert not any("shift" in name for name in operations(graphs))
    assert types.tolist() == [0, 1, 1, 0, 1, 0]
    assert ids.tolist() == IDS


def test_the_graphs_of_shifts_would_be_told_apart() -> None:
    graphs, _ = compiled(shifted_decode, torch.tensor(IDS, dtype=torch.int32))
    assert any("shift" in name for name in operations(graphs))


@pytest.mark.parametrize("module", [roberta, ernie])
def test_copies_by_name_are_the_edited_functions(module) -> None:
    assert module._encode_token_type_ids is bert._encode_token_type_ids
    assert module._decode_token_type_ids is bert._decode_token_type_ids
