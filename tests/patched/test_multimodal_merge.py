"""W2: multimodal embeddings are merged by index assignment, with their number checked."""

from __future__ import annotations

import importlib

import pytest
import torch
from vllm.model_executor.models import utils
from vllm.model_executor.models.utils import _merge_multimodal_embeddings as merge

MASK = torch.tensor([False, True, True, False, True, False])
ROWS = torch.arange(9.0).reshape(3, 3)


def test_rows_go_to_the_placeholders_in_place() -> None:
    embeds = torch.zeros(6, 3)
    assert merge(embeds, ROWS, MASK) is embeds
    assert torch.equal(embeds[[1, 2, 4]], ROWS)
    assert not embeds[[0, 3, 5]].any()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_counts_that_differ_are_refused(count: int) -> None:
    embeds = torch.zeros(6, 3)
    message = f"^Attempted to assign {count} = {count} multimodal tokens to 3 placeholders$"
    with pytest.raises(ValueError, match=message):
        merge(embeds, torch.ones(count, 3), MASK)
    assert not embeds.any()


def test_rows_for_no_placeholder_are_refused() -> None:
    with pytest.raises(ValueError, match="to 0 placeholders"):
        merge(torch.zeros(6, 3), [torch.ones(1, 3)], torch.zeros(6, dtype=torch.bool))


def test_other_errors_keep_their_own_message() -> None:
    with pytest.raises(ValueError, match=r"^Error during index put operation$"):
        merge(torch.zeros(6, 3), torch.ones(3, 2), MASK)


@pytest.mark.parametrize("mask", [MASK, torch.zeros(6, dtype=torch.bool)])
def test_no_embeddings_give_the_input_back(mask: torch.Tensor) -> None:
    embeds = torch.ones(6, 3)
    assert merge(embeds, [], mask) is embeds
    assert torch.equal(embeds, torch.ones(6, 3))


@pytest.mark.parametrize(
    "nested",
    [[ROWS[:1], ROWS[1:]], (ROWS[:2], ROWS[2:]), [[ROWS[:1]], [ROWS[1:2], ROWS[2:]]]],
)
def test_nested_embeddings_are_joined(nested) -> None:
    expected = merge(torch.zeros(6, 3), ROWS, MASK)
    assert torch.equal(merge(torch.zeros(6, 3), nested, MASK), expected)


def test_nested_counts_are_spelt_out() -> None:
    with pytest.raises(ValueError, match=r"assign 1 \+ 3 = 4 multimodal tokens to 3 placeholders"):
        merge(torch.zeros(6, 3), [ROWS[:1], torch.ones(3, 3)], MASK)


def test_source_is_cast_to_the_type_of_the_embeddings() -> None:
    embeds = torch.zeros(6, 3, dtype=torch.bfloat16)
    rows = ROWS + 1 / 512
    merge(embeds, rows, MASK)
    assert embeds.dtype is torch.bfloat16
    assert torch.equal(embeds[MASK], rows.to(torch.bfloat16))


def test_values_are_those_of_masked_scatter() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        mask = torch.rand(50, generator=generator) < 0.4
        rows = torch.rand(int(mask.sum()), 8, generator=generator)
        before = torch.rand(50, 8, generator=generator)
        expected = before.clone().masked_scatter_(mask.unsqueeze(-1), rows)
        assert torch.equal(merge(before, [rows], mask), expected)


def test_mask_on_a_device_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting a mask on a device waits for it; `meta` stands for the device."""

    def count(self: torch.Tensor) -> torch.Tensor:
        raise AssertionError("counted")

    embeds = torch.zeros(6, 3, device="meta")
    monkeypatch.setattr(torch.Tensor, "sum", count)
    assert merge(embeds, torch.ones(3, 3, device="meta"), MASK.to("meta")) is embeds


@pytest.mark.parametrize("name", ["fireredasr2", "molmo2", "phi3v"])
def test_copies_by_name_are_the_edited_function(name: str) -> None:
    module = importlib.import_module(f"vllm.model_executor.models.{name}")
    assert module._merge_multimodal_embeddings is utils._merge_multimodal_embeddings
