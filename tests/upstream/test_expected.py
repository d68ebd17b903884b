"""The list of upstream's test files, and the verdict on two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tool_kit import ROOT

from ci.upstream.expected import TestFile as Entry
from ci.upstream.expected import faults, read_list
from ci.upstream.runs import Run
from rewriter.errors import RewriterError

PATH = '[[file]]\npath = "tests/test_b.py"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[", ""),
        ("", "it has no [[file]]"),
        ("file = []", "it has no [[file]]"),
        ("file = 3", "it has no [[file]]"),
        ("file = [3]", "3 is no table"),
        ("[[file]]\npasses = 1", "a file has no path"),
        ("[[file]]\npath = 3", "path = 3 of 3 is not a string"),
        (f"{PATH}pathh = 1", "pathh is not known"),
        (f"{PATH}{PATH}", "tests/test_b.py is in it twice"),
        (f"{PATH}passes = '1'", "passes = '1' of 'tests/test_b.py' is not a number of tests"),
        (f"{PATH}passes = true", "passes = True of 'tests/test_b.py' is not a number of tests"),
        (f"{PATH}passes = -1", "is not a number of tests"),
        (f"{PATH}process = []", "process = [] of 'tests/test_b.py' is not a string"),
        (f"{PATH}timeout = 'long'", "is not a number of seconds"),
        (f"{PATH}timeout = 0", "is not a number of seconds"),
        (f"{PATH}timeout = {10**30}", "is not a number of seconds"),
        (f"{PATH}alone = 'yes'", "alone = 'yes' of 'tests/test_b.py' is not true or false"),
        (f"{PATH}leave_out = ['x']", "is not a table of reasons"),
        (f"{PATH}differs = {{x = 3}}", "is not a table of reasons"),
        (f"{PATH}differs = {{x = 'y'}}", "x in differs is no test of 'tests/test_b.py'"),
    ],
)
def test_list_with_odd_entries(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(text)
    with pytest.raises(RewriterError) as caught:
        read_list(file)
    assert str(caught.value).startswith("odd.toml is no list of test files: ")
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_verdict_knows_each_test_by_its_name() -> None:
    """Counts alone would be the same here."""
    one = Run({"tests/a.py::x": "passed", "tests/a.py::y": "failed"})
    two = Run({"tests/a.py::x": "failed", "tests/a.py::y": "passed"})
    assert faults(Entry("tests/a.py", 0), one, two) == [
        "tests/a.py::x: passed -> failed",
        "tests/a.py::y: failed -> passed",
    ]
    assert faults(Entry("tests/a.py"), one, Run({"tests/a.py::x": "passed"})) == [
        "tests/a.py::y: failed -> not run"
    ]


def test_file_on_the_cpu_may_gain_and_not_lose() -> None:
    before = Run({"tests/a.py::x": "failed", "tests/a.py::y": "passed"})
    after = Run({"tests/a.py::x": "passed", "tests/a.py::y": "passed"})
    assert faults(Entry("tests/a.py", 2, on_cpu=True), before, after) == []
    assert faults(Entry("tests/a.py", 1, on_cpu=True), before, after) == ["2 tests pass, not 1"]
    assert faults(Entry("tests/a.py", 1), before, after) == ["tests/a.py::x: failed -> passed"]
    assert faults(Entry("tests/a.py", 1, on_cpu=True), after, before) == [
        "tests/a.py::x: passed -> failed"
    ]


def test_list_is_sound() -> None:
    files = read_list()
    assert len({file.path for file in files}) == len(files) > 30
    assert all(file.passes for file in files)
    for file in files:
        assert all(test.startswith(f"{file.path}::") for test in [*file.leave_out, *file.differs])
    with pytest.raises(RewriterError, match="is no list of test files"):
        read_list(ROOT / "nowhere.toml")
