"""The tiny vLLM that the command line is tried on."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_kit import TRANSFORM, Kit
from small_tree import write_small_tree


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A tree with one thing to edit, a transform that edits it, and an empty cache."""
    tree = write_small_tree(tmp_path / "tree")
    (tree / "vllm" / "answer.py").write_text("def answer():\n    return 1\n")
    kit = Kit(tmp_path, tree)
    kit.transforms.mkdir()
    (kit.transforms / "answer.py").write_text(TRANSFORM)
    return kit
