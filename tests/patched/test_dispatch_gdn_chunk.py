"""W4.5: the chunked gated delta rule of the patched vLLM on a CPU, without Triton."""

from __future__ import annotations

import inspect
import math

import gdn_chunk_kit as kit
import pytest
import torch
from gdn_chunk_kit import batch, recurrence, watched
from patched_kit import npu_scene, pristine
from test_gdn_argsort import build
from vllm.model_executor.layers.fla import ops
from vllm.model_executor.layers.fla.ops import chunk
from vllm.model_executor.models import olmo_hybrid, qwen3_next

from ascend_runtime import dispatch

FILE = "vllm/model_executor/layers/fla/ops/chunk.py"


@pytest.mark.parametrize("lengths", [[1], [70, 0, 5, 64, 1], [0, 130], [64, 65, 128]], ids=str)
def test_rule_is_the_recurrence(lengths) -> None:
    arguments = batch(lengths)
    o, state = chunk.chunk_gated_delta_rule(**arguments)
    wanted, wanted_state = recurrence(lengths, arguments)
    torch.testing.assert_close(o, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=1e-4, atol=1e-5)
    assert state.dtype == torch.float32
    for n, length in enumerate(lengths):
        if not length:
            assert torch.equal(state[n], arguments["initial_state"][n].float())


def test_state_is_values_by_keys_as_in_the_cache() -> None:
    """A state that one token writes: [V, K], with the key in its last dimension."""
    q = k = torch.tensor([0.0, 1, 0]).half().view(1, 1, 1, 3)
    v = torch.tensor([5.0, 7]).half().view(1, 1, 1, 2)
    zero, half = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.5)
    before = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).view(1, 1, 2, 3)
    o, state = chunk.chunk_gated_delta_rule(
        q, k, v, zero + math.log(0.5), half, 1.0, before, output_final_state=True
    )
    torch.testing.assert_close(state[0, 0], torch.tensor([[0.5, 3, 1.5], [2, 4.75, 3]]))
    assert o.flatten().tolist() == [3, 4.75]


def test_every_importer_has_the_decorated_rule() -> None:
    rule = chunk.chunk_gated_delta_rule
    assert ops.chunk_gated_delta_rule is qwen3_next.fla_chunk_gated_delta_rule is rule
    assert olmo_hybrid.chunk_gated_delta_rule is rule
    assert rule.__name__ == "chunk_gated_delta_rule" and hasattr(rule, "__wrapped__")


def test_ours_take_the_arguments_of_vllms(base) -> None:
    from ascend_runtime.reference.gdn import chunk_gated_delta_rule as ours

    before = inspect.signature(pristine(base.root, FILE).chunk_gated_delta_rule).parameters
    edited = inspect.signature(chunk.chunk_gated_delta_rule).parameters
    assert list(edited) == list(inspect.signature(ours).parameters)
    assert list(edited)[: len(before)] == list(before)
    defaults = [p.default for p in inspect.signature(ours).parameters.values()]
    assert defaults == [p.default for p in edited.values()]


@pytest.mark.filterwarnings("ignore:Input tensor shape suggests")
def test_vllms_own_rule_can_be_chosen() -> None:
    arguments = batch([70, 4])
    with watched() as seen:
        upstream = chunk.chunk_gated_delta_rule(**arguments)
    assert seen.launches == list(kit.KERNELS.values())
    with watched() as seen:
        with dispatch.override("reference", kit.RULE):
            ours = chunk.chunk_gated_delta_rule(**arguments)
        assert seen.launches == []
    for given, wanted in zip(ours, upstream, strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["forward_native", "forward_oot"])
def test_layer_with_the_chunks_of_the_builder(method) -> None:
    """Prefill of a batch with drafts and an empty sequence: its metadata, the layer's function."""
    metadata = build([4, 4, 0, 70], [-1, 3, -1, -1])
    lengths = metadata.non_spec_query_start_loc.diff().tolist()
    assert lengths == [4, 0, 70] and metadata.chunk_indices.tolist() == [[0, 0], [2, 0], [2, 1]]
    arguments = batch(lengths)
    layer = object.__new__(qwen3_next.ChunkGatedDeltaRule)
    o, state = getattr(layer, method)(
        **{**arguments, "cu_seqlens": metadata.non_spec_query_start_loc},
        chunk_indices=metadata.chunk_indices,
        chunk_offsets=metadata.chunk_offsets,
    )
    wanted, wanted_state = recurrence(lengths, arguments)
    torch.testing.assert_close(o, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=1e-4, atol=1e-5)


def test_on_an_npu_without_triton_it_is_the_reference() -> None:
    answer = npu_scene("npu_gdn_scenes.py", "dispatched")
    assert answer["devices"] == ["npu", "npu"]
    assert answer["off"] < 1e-5
    (warning,) = answer["warnings"]
    assert "gdn.chunk_gated_delta_rule runs as its plain torch reference" in warning
