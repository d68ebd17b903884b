"""The list of upstream's test files, what is expected of them, and the verdict on two runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.upstream.runs import Run
from rewriter.errors import RewriterError

LIST = Path(__file__).parents[1] / "upstream_tests.toml"


@dataclass(frozen=True)
class TestFile:
    """One file of tests and what is expected of it; `passes` is None where nothing is.

    Files with the same `process` run in one process; while one that is to be `alone` runs, no other
    such one does. `leave_out` and `differs` map tests (or, to
    leave out, beginnings of their ids) to the reason: those that cannot be run here, and those that
    a transform changes on purpose.
    """

    __test__ = False

    path: str
    passes: int | None = None
    process: str = ""
    timeout: int = 900
    alone: bool = False
    leave_out: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name of the process that it runs in."""
        return self.process or self.path


def read_list(file: Path = LIST) -> list[TestFile]:
    """Return the files of a list; RewriterError if it cannot be read or has odd entries."""
    try:
        entries: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["file"]
        return [TestFile(**entry) for entry in entries]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RewriterError(f"{file.name} is no list of test files: {error}") from error


def update_list(passes: Mapping[str, int], file: Path = LIST) -> None:
    """Write new numbers of passing tests into a list, and leave all else as it is."""
    text = file.read_text("utf-8")
    for path, number in passes.items():
        entry = rf'(path = "{re.escape(path)}"\npasses = )\d+'
        text = re.sub(entry, rf"\g<1>{number}", text)
    file.write_text(text, "utf-8")


def faults(file: TestFile, pristine: Run, patched: Run) -> list[str]:
    """Return what is wrong with the outcomes of one file's tests, a line each."""
    lines = [
        f"{name}: {run.fault}"
        for name, run in (("pristine", pristine), ("patched", patched))
        if run.fault
    ]
    before, after = pristine.of(file.path), patched.of(file.path)
    for test in sorted({*before, *after, *file.differs}):
        one, two = before.get(test, "not run"), after.get(test, "not run")
        if one != two and test not in file.differs:
            lines.append(f"{test}: {one} -> {two}")
        if one == two and test in file.differs:
            lines.append(f"{test}: {one} on both trees, but listed as changed on purpose")
    return lines + count_faults(file, passing(pristine, patched, file.path))


def passing(pristine: Run, patched: Run, path: str) -> int:
    """Return how many of a file's tests pass on both trees."""
    after = patched.of(path)
    return sum(o == "passed" == after.get(test) for test, o in pristine.of(path).items())


def count_faults(file: TestFile, count: int) -> list[str]:
    """Return a line if a file has not the number of passing tests that is expected."""
    if file.passes in (None, count):
        return []
    return [f"{count} tests pass, not {file.passes}"]
