"""Top-k and top-p, defined; and the plugin's operator, called as its contract says."""

from __future__ import annotations

import pytest
import torch

from ascend_runtime.reference import sampling
from ascend_runtime.vendor import sampling as vendor


def kept(probabilities: list[float], k: int | None, p: float | None) -> list[int]:
    logits = torch.tensor([probabilities]).log()
    cut = sampling.apply_top_k_top_p(
        logits,
        None if k is None else torch.tensor([k], dtype=torch.int32),
        None if p is None else torch.tensor([p]),
    )
    return cut[0].isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("k", "p", "ids"),
    [
        (2, None, [0, 1]),
        (None, 0.5, [0, 1]),
        (None, 0.75, [0, 1, 2]),
        (2, 0.5, [0]),  # of 4/7 and 3/7; on what top-k did not cut it would be two
        (4, 1.0, [0, 1, 2, 3]),
        (1, 0.01, [0]),
        (None, 1e-9, [0]),
        (None, None, [0, 1, 2, 3]),
    ],
)
def test_what_is_kept(k, p, ids):
    assert kept([0.4, 0.3, 0.2, 0.1], k, p) == ids


def test_equals_at_the_cut():
    """Top-k keeps all that equal the last one; top-p drops so many that p is reached."""
    assert kept([0.25] * 4, 2, None) == [0, 1, 2, 3]
    assert len(kept([0.25] * 4, None, 0.3)) == 2


def test_rows_are_their_own():
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 2)
    cut = sampling.apply_top_k_top_p(logits, torch.tensor([1, 3]), torch.tensor([1.0, 1.0]))
    assert cut.isfinite().tolist() == [[False, True, False], [True, True, True]]
    assert cut[1].tolist() == [1.0, 3.0, 2.0]


def test_plugins_operator_gets_narrow_k():
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    given = {}

    def operator(logits, k, p):
        given.update(k=k, p=p)
        return logits + 1

    library.define("npu_apply_top_k_top_p(Tensor logits, *, Tensor? k, Tensor? p) -> Tensor")
    library.impl("npu_apply_top_k_top_p", operator, "CompositeExplicitAutograd")
    logits = torch.zeros(2, 3)
    p = torch.ones(2)
    assert vendor.apply_top_k_top_p(logits, torch.tensor([1, 2]), p).sum() == 6
    assert given["k"].dtype == torch.int32 and given["k"].tolist() == [1, 2]
    assert given["p"] is p
    vendor.apply_top_k_top_p(logits, None, p)
    assert given["k"] is None
    assert vendor.apply_top_k_top_p(logits, None, None) is logits


def test_what_the_operator_takes():
    logits, p = torch.zeros(2, 3), torch.ones(2)
    assert vendor.apply_top_k_top_p_fits(logits, None, p)
    assert vendor.apply_top_k_top_p_fits(logits.half(), torch.ones(2), None)
    assert not vendor.apply_top_k_top_p_fits(logits[0], None, p)
    assert not vendor.apply_top_k_top_p_fits(logits.double(), None, None)
    assert not vendor.apply_top_k_top_p_fits(logits.T, None, None)
    assert not vendor.apply_top_k_top_p_fits(logits, None, p.double())
