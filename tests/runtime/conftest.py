"""What tests of `ascend_runtime` share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_reaches_caplog() -> Iterator[None]:
    """vLLM, once imported by other tests of the process, keeps its log from the root logger."""
    log = logging.getLogger("vllm")
    before, log.propagate = log.propagate, True
    yield
    log.propagate = before
