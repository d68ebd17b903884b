"""docs/transforms.md is made from the transforms, and CI fails when it is stale."""

from __future__ import annotations

from pathlib import Path

from rewriter.catalog import load
from rewriter.docs import transforms_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transforms.md"


def test_page_is_what_the_transforms_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == transforms_page(load()), (
        "run: python -m rewriter.docs > docs/transforms.md"
    )
