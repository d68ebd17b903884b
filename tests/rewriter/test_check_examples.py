"""Examples that are true, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_kit import FILE, transform

from rewriter.edits import In, replace
from rewriter.examples import check_examples
from rewriter.transform import Example

BEFORE = "def f():\n    print()\n    return 1\n"
AFTER = "def f():\n    print()\n    return 2\n"


def checked(tmp_path: Path, *examples: Example, **more) -> list[str]:
    targets = [In(FILE, "f").do(replace("1", "2")), In(FILE, "g").do(replace("3", "4"))]
    return check_examples(transform(*targets, examples=examples, **more), tmp_path)


def test_true_examples(tmp_path):
    found = checked(
        tmp_path,
        Example(FILE, BEFORE, AFTER),
        Example(FILE, BEFORE.replace("\n", "\r\n"), AFTER.replace("\n", "\r\n")),
        Example(FILE, AFTER, AFTER),
        Example(FILE, "def f():\n    return 3\n", None),
        Example(FILE, "def g():\n    return 3\n", "def g():\n    return 4\n"),
    )
    assert found == []


def test_no_examples(tmp_path):
    assert checked(tmp_path) == []


def test_other_versions_and_prerequisites_do_not_matter(tmp_path):
    example = Example(FILE, BEFORE, AFTER)
    assert checked(tmp_path, example, vllm=">=99", after=("another",)) == []


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (
            Example(FILE, BEFORE, BEFORE.replace("return 1", "return 3")),
            "line 3 becomes '    return 2\\n', not '    return 3\\n'",
        ),
        (Example(FILE, BEFORE, AFTER + "y\n"), "line 4 becomes nothing, not 'y\\n'"),
        (Example(FILE, BEFORE, None), "it must be refused, and is applied"),
        (Example(FILE, AFTER, None), "it must be refused, and is already-upstream"),
        (Example(FILE, BEFORE, BEFORE), "the edits must be already-upstream, and are applied: "),
        (Example(FILE, AFTER, BEFORE), "the edits must be applied, and are already-upstream: "),
        (Example(FILE, "def f(): ...\n", AFTER), "and are drifted: vllm/a.py: f: replace `1` by "),
        (Example(FILE, "def f(:\n", AFTER), "the edits must be applied, and are drifted: "),
        (Example(FILE, "x = 0\n", AFTER), "it holds no scope that the transform edits"),
    ],
)
def test_false_examples(tmp_path, example, words):
    (line,) = checked(tmp_path, Example(FILE, BEFORE, AFTER), example)
    assert line.startswith("example 2 (vllm/a.py): ")
    assert words in line
    assert "\n" not in line
