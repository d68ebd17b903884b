"""docs/transforms.md and the README's table are of all transforms; CI fails when they are stale."""

from __future__ import annotations

import re
from pathlib import Path

from rewriter.catalog import load
from rewriter.docs import transforms_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "transforms.md"
README = ROOT / "README.md"


def test_page_is_what_the_transforms_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == transforms_page(load()), (
        "run: python -m rewriter.docs > docs/transforms.md"
    )


def test_readme_has_every_transform_in_its_table_of_rows() -> None:
    rows = [
        line.split("|")[1:3]
        for line in README.read_text(encoding="utf-8").splitlines()
        if line.startswith(("| platform/", "| worker/", "| - |"))
    ]
    named = [(row.strip(), id) for row, ids in rows for id in re.findall(r"`(\w+)`", ids)]
    assert sorted(named) == sorted(
        (row, transform.id) for transform in load() for row in transform.seeds or ["-"]
    )
