"""Sizes, dtypes, states and lengths for attention on NPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ascend_runtime import attn
from ascend_runtime.attn import BatchState


@pytest.mark.parametrize(
    ("kind", "extra", "dtype"), [("npu", 1, torch.int32), ("cuda", 0, torch.int64)]
)
def test_what_an_npu_wants(monkeypatch, kind: str, extra: int, dtype: torch.dtype) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", kind)
    assert attn.query_start_loc_extra() == extra
    assert attn.slot_mapping_dtype() == dtype


def config(method: str | None = None, chunked: bool = True, **changed: object) -> SimpleNamespace:
    model = {"runner_type": "generate", "attn_type": "decoder"} | changed
    speculative = SimpleNamespace(method=method) if method else None
    return SimpleNamespace(
        model_config=SimpleNamespace(**model),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=chunked, async_scheduling=False),
        speculative_config=speculative,
    )


ENCODER = {"runner_type": "pooling", "attn_type": "encoder_only"}
DECODER = {"runner_type": "pooling", "attn_type": "decoder"}
PREFILL = ([5, 7], [5, 7], [0, 0])
CACHED = ([5, 9], [5, 7], [0, 0])
DECODE = ([9, 4], [1, 1], [0, 0])
DRAFTS = ([9, 4], [3, 2], [2, 1])
MIXED = ([9, 4], [1, 4], [0, 0])


@pytest.mark.parametrize(
    ("batch", "of", "state"),
    [
        (PREFILL, {}, BatchState.PREFILL_NO_CACHE),
        (PREFILL, {"method": "mtp"}, BatchState.PREFILL_NO_CACHE),
        (CACHED, {}, BatchState.CHUNKED_PREFILL),
        (CACHED, {"chunked": False}, BatchState.PREFILL_CACHE_HIT),
        (DECODE, {}, BatchState.DECODE_ONLY),
        (DECODE, {"method": "eagle3"}, BatchState.DECODE_ONLY),
        (DECODE, {"method": "mtp"}, BatchState.SPEC_DECODING),
        (([1, 1], [1, 1], [0, 0]), {}, BatchState.DECODE_ONLY),
        (DRAFTS, {"method": "mtp"}, BatchState.SPEC_DECODING),
        (DRAFTS, {"method": "eagle3", "chunked": False}, BatchState.CHUNKED_PREFILL),
        (MIXED, {}, BatchState.CHUNKED_PREFILL),
        (MIXED, {"chunked": False}, BatchState.PREFILL_CACHE_HIT),
        (PREFILL, ENCODER, BatchState.PREFILL_NO_CACHE),
        (DECODE, ENCODER, BatchState.PREFILL_NO_CACHE),
        (PREFILL, DECODER, BatchState.PREFILL_CACHE_HIT),
    ],
)
def test_state_of_a_batch(batch: tuple, of: dict, state: BatchState) -> None:
    assert attn.batch_state(*map(torch.tensor, batch), config(**of)) is state


def test_numbers_of_the_states() -> None:
    assert [state.value for state in BatchState] == [0, 1, 2, 3, 4]
    assert BatchState.DECODE_ONLY == 2 and BatchState.SPEC_DECODING == 4


BOUND = torch.tensor([5, 9, 0], dtype=torch.int32)
DEVICE = torch.tensor([5, 7, 0], dtype=torch.int32)


@pytest.mark.parametrize(
    ("bound", "method", "in_flight", "lengths"),
    [
        (BOUND, None, False, [5, 9]),
        (BOUND, None, True, [5, 9]),
        (BOUND, "mtp", False, [5, 9]),
        (BOUND, "mtp", True, [5, 7]),  # a draft may have been rejected
        (None, None, False, [5, 7]),
    ],
)
def test_lengths_are_exact(bound, method, in_flight: bool, lengths: list[int]) -> None:
    batch = SimpleNamespace(seq_lens_cpu_upper_bound=bound, seq_lens=DEVICE)
    of = config(method)
    of.scheduler_config.async_scheduling = in_flight
    found = attn.exact_seq_lens(batch, 2, of)
    assert found.tolist() == lengths and found.dtype == torch.int32


def test_class_without_known_fields_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Plain is not a dataclass"):
        attn.register_metadata(type("Plain", (), {}))
