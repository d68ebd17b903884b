"""Each transform's own examples: before, after, and what it must not touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.catalog import load
from rewriter.outcome import Outcome
from rewriter.rewrite import rewrite
from rewriter.transform import Example, Transform

CASES = [(t, e) for t in load() for e in t.examples]


def narrowed(transform: Transform, example: Example) -> Transform:
    """Only those targets of the example's file whose scope the example holds."""
    text = example.before
    names = [t for t in transform.edits if t.path == example.path]
    held = [t for t in names if t.scope.rpartition(".")[2] in text]
    assert held, "the example holds no scope that the transform edits"
    return replace(transform, edits=held, after=())


@pytest.mark.parametrize(
    ("transform", "example"),
    CASES,
    ids=[f"{t.id}-{'refuses' if e.after is None else 'edits'}" for t, e in CASES],
)
def test_example(small_base, tmp_path: Path, transform: Transform, example: Example) -> None:
    base = small_base({example.path: example.before})
    only = narrowed(transform, example)
    work = tmp_path / "work"
    work.mkdir()
    result = rewrite(base, [only], work)
    (outcome,) = result.results
    if example.after is None:
        assert outcome.outcome.failed
        assert not result.files
        return
    assert outcome.outcome is Outcome.APPLIED, outcome.detail
    assert result.files[example.path].decode() == example.after


@pytest.mark.parametrize("transform", load(), ids=lambda t: t.id)
def test_every_transform_has_an_example_that_edits(transform: Transform) -> None:
    assert any(example.after for example in transform.examples)
