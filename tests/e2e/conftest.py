"""The patched wheel and the test platform, for processes that the tests of this folder start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "patched"), str(TESTS / "platform")]

from e2e_kit import Ground, ground  # noqa: E402


@pytest.fixture(scope="session")
def e2e(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Where whole models run."""
    return ground(tmp_path_factory.mktemp("e2e"))
