"""The ground that the tool is tested on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tool_kit import small_ground


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    return small_ground(tmp_path / "ground")
