"""Each transform's own examples: before, after, and what it must not touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.catalog import load
from rewriter.examples import check_examples
from rewriter.transform import Example, Transform

CASES = [(t, e) for t in load() for e in t.examples]


@pytest.mark.parametrize(
    ("transform", "example"),
    CASES,
    ids=[f"{t.id}-{'refuses' if e.after is None else 'edits'}" for t, e in CASES],
)
def test_example(tmp_path: Path, transform: Transform, example: Example) -> None:
    assert check_examples(replace(transform, examples=[example]), tmp_path) == []


@pytest.mark.parametrize("transform", load(), ids=lambda t: t.id)
def test_every_transform_has_an_example_that_edits(transform: Transform) -> None:
    assert any(example.after not in (None, example.before) for example in transform.examples)
