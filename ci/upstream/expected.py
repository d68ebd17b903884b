"""The list of upstream's test files, what is expected of them, and the verdict on two runs."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.upstream.runs import Run
from rewriter.cache import os_errors
from rewriter.errors import RewriterError

LIST = Path(__file__).parents[1] / "upstream_tests.toml"


@dataclass(frozen=True)
class TestFile:
    """One file of tests and what is expected of it; `passes` is None where nothing is.

    Files with the same `process` run in one process; while one that is to be `alone` runs, no other
    such one does. Where it is `on_cpu`, the device it names is the CPU, and tests may pass on the
    patched tree alone: those that do are what `passes` counts. `leave_out` and `differs` map tests
    (or, to leave out, beginnings of their ids) to the reason: those that cannot be run here, and
    those that a transform changes on purpose.
    """

    __test__ = False

    path: str
    passes: int | None = None
    process: str = ""
    timeout: int = 900
    alone: bool = False
    on_cpu: bool = False
    leave_out: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name of the process that it runs in."""
        return self.process or self.path


def read_list(file: Path = LIST) -> list[TestFile]:
    """Return the files of a list; RewriterError if it cannot be read or has odd entries."""
    try:
        entries = tomllib.loads(file.read_text("utf-8")).get("file")
        if not isinstance(entries, list) or not entries:
            raise ValueError("it has no [[file]]")
        files = [_test_file(entry) for entry in entries]
        twice = [path for path, count in Counter(f.path for f in files).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is in it twice")
        return files
    except (OSError, ValueError) as error:
        raise RewriterError(f"{file.name} is no list of test files: {error}") from error


def _test_file(entry: object) -> TestFile:
    """Return an entry of the list; ValueError if it is none."""
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r} is no table")
    if "path" not in entry:
        raise ValueError("a file has no path")
    for key, value in entry.items():
        if key not in _KINDS:
            raise ValueError(f"{key} is not known")
        wanted, fits = _KINDS[key]
        if not fits(value):
            raise ValueError(f"{key} = {value!r} of {entry['path']!r} is not {wanted}")
    for key in ("leave_out", "differs"):
        for test in entry.get(key, {}):
            if not test.startswith(f"{entry['path']}::"):
                raise ValueError(f"{test} in {key} is no test of {entry['path']!r}")
    return TestFile(**entry)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_reasons(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(reason, str) for reason in value.values())


#: What each value of an entry is to be, in words and as a test.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "path": ("a string", lambda value: isinstance(value, str)),
    "passes": ("a number of tests", lambda value: _is_number(value) and value >= 0),
    "process": ("a string", lambda value: isinstance(value, str)),
    # Python waits no longer than a C integer of nanoseconds says.
    "timeout": ("a number of seconds", lambda value: _is_number(value) and 0 < value < 10**7),
    "alone": ("true or false", lambda value: isinstance(value, bool)),
    "on_cpu": ("true or false", lambda value: isinstance(value, bool)),
    "leave_out": ("a table of reasons", _are_reasons),
    "differs": ("a table of reasons", _are_reasons),
}


def check_update(paths: Sequence[str], file: Path = LIST) -> None:
    """Raise RewriterError if `update_list` could not write new numbers for `paths`."""
    with os_errors(f"{file.name} cannot be updated"), file.open("r+b"):
        pass
    text = file.read_text("utf-8")
    for path in paths:
        if not re.search(_entry(path), text):
            raise RewriterError(
                f"{file.name} cannot be updated: it has no "
                f'path = "{path}" with a line passes = N below; add them first'
            )


def update_list(passes: Mapping[str, int], file: Path = LIST) -> None:
    """Write new numbers of passing tests into a list, and leave all else as it is.

    Raises RewriterError if it cannot be written.
    """
    with os_errors(f"{file.name} cannot be updated", file.parent), file.open("r+b") as out:
        text = out.read().decode("utf-8")
        for path, number in passes.items():
            text = re.sub(_entry(path), rf"\g<1>{number}", text)
        out.seek(0)
        out.write(text.encode("utf-8"))
        out.truncate()


def _entry(path: str) -> str:
    """Return the pattern of a file's number, whose first group is all before it."""
    return rf'(?m)^(path = "{re.escape(path)}"\r?\npasses = )\d+'


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
        gained = file.on_cpu and one != "passed"
        if one != two and test not in file.differs and not gained:
            lines.append(f"{test}: {one} -> {two}")
        if one == two and test in file.differs:
            lines.append(f"{test}: {one} on both trees, but listed as changed on purpose")
    return lines + count_faults(file, passing(pristine, patched, file))


def passing(pristine: Run, patched: Run, file: TestFile) -> int:
    """Return how many of a file's tests pass: on both trees, or, on the CPU, on the patched one."""
    after = patched.of(file.path)
    if file.on_cpu:
        return sum(outcome == "passed" for outcome in after.values())
    return sum(o == "passed" == after.get(test) for test, o in pristine.of(file.path).items())


def count_faults(file: TestFile, count: int) -> list[str]:
    """Return a line if a file has not the number of passing tests that is expected."""
    if file.passes in (None, count):
        return []
    return [f"{count} tests pass, not {file.passes}"]
