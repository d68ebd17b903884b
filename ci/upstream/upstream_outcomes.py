"""A pytest plugin: writes the outcome of each test as a line of JSON to $UPSTREAM_OUTCOMES.

It also gives torch.accelerator what it lacks on a machine without one: vLLM's fixtures call two of
its functions after each test, which raise there. And it seeds what vLLM's tests leave unseeded, so
that both trees get the same tests.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from collections.abc import Iterator

import pytest

_RANK = ("passed", "xfailed", "skipped", "xpassed", "failed", "error")


def _write(test: str, outcome: str) -> None:
    with open(os.environ["UPSTREAM_OUTCOMES"], "a") as file:  # noqa: PTH123 - tests may patch paths
        file.write(json.dumps([test, outcome]) + "\n")


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and report.when != "call":
        return "error"
    return report.outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the worst outcome of a test's three phases; its random numbers are always the same."""
    item.stash[_OUTCOMES] = []
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["numpy"].random.seed(0)
        sys.modules["torch"].manual_seed(0)
    result = yield
    outcomes = item.stash[_OUTCOMES]
    _write(item.nodeid, max(outcomes, key=_RANK.index) if outcomes else "error")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Collect the outcomes of the phases."""
    report = yield
    item.stash[_OUTCOMES].append(_outcome(report))
    return report


def pytest_collection_finish() -> None:
    """Make vLLM's fixtures work without an accelerator, and fast.

    Its clean-up thaws and collects all garbage after each test, which takes ten times as long as
    most tests: what is imported stays out of it.
    """
    torch = sys.modules.get("torch")
    if torch and not torch.accelerator.is_available():
        for name in ("empty_cache", "synchronize"):
            setattr(torch.accelerator, name, lambda *arguments, **keywords: None)
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be collected, or is skipped whole."""
    if report.failed or (report.skipped and report.nodeid.endswith(".py")):
        _write(report.nodeid, "error" if report.failed else "skipped")


_OUTCOMES = pytest.StashKey[list[str]]()
