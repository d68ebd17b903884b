"""Runs the examples of a transform: what its edits make of them, and what they must refuse."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from rewriter.base import DEFAULT_VERSION, Base
from rewriter.outcome import Outcome
from rewriter.rewrite import rewrite
from rewriter.transform import Example, Transform


def check_examples(transform: Transform, work: Path) -> list[str]:
    """Run the examples of a transform; return one line for each that is not true.

    `work` is a scratch folder. An example runs the targets of its file whose scope it holds, alone,
    whatever vLLM the transform is declared for. Raises RewriterError if ruff does not run.
    """
    return list(_failures(transform, work))


def _failures(transform: Transform, work: Path) -> Iterator[str]:
    for number, example in enumerate(transform.examples, start=1):
        folder = Path(tempfile.mkdtemp(prefix="example-", dir=work))
        problem = _problem(transform, example, folder)
        if problem:
            yield f"example {number} ({example.path}): {problem}"


def _problem(transform: Transform, example: Example, work: Path) -> str:
    """Say in a line what is wrong with an example; nothing if it is true."""
    named = [target for target in transform.edits if target.path == example.path]
    words = {"", *re.findall(r"\w+", example.before)}
    held = [target for target in named if target.scope.rpartition(".")[2] in words]
    if not held:
        return "it holds no scope that the transform edits"
    file = work / "base" / example.path
    file.parent.mkdir(parents=True)
    file.write_bytes(example.before.encode())
    base = Base(DEFAULT_VERSION, "0" * 64, "tree", work / "base")
    done = rewrite(base, [replace(transform, edits=held, after=(), vllm="")], work)
    (result,) = done.results
    if example.after is None:
        return "" if result.outcome.failed else f"it must be refused, and is {result.outcome}"
    stays = example.after == example.before
    wanted = Outcome.ALREADY_UPSTREAM if stays else Outcome.APPLIED
    if result.outcome is not wanted:
        detail = " ".join(result.detail.split())
        return f"the edits must be {wanted}, and are {result.outcome}: {detail}"
    after = done.files.get(example.path, example.before.encode())
    return _difference(after.decode("utf-8", "replace"), example.after)


def _difference(got: str, wanted: str) -> str:
    pairs = zip_longest(got.splitlines(keepends=True), wanted.splitlines(keepends=True))
    for number, (ours, theirs) in enumerate(pairs, start=1):
        if ours != theirs:
            return f"line {number} becomes {_shown(ours)}, not {_shown(theirs)}"
    return ""


def _shown(line: str | None) -> str:
    return "nothing" if line is None else repr(line)
