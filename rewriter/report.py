"""What a build did, as a JSON object and as a table for the terminal.

Both show every transform and every problem of a failed one. Neither holds a time or a path of this
machine: a build twice gives the same report. The page for browsers is in `rewriter.html`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rewriter import __version__
from rewriter.base import Base
from rewriter.html import html
from rewriter.outcome import Outcome, Problem, Result
from rewriter.rewrite import Rewritten
from rewriter.totals import by_id, summary, totals
from rewriter.transform import Transform

__all__ = ["SCHEMA", "dumps", "html", "json_schema", "summary", "table", "to_json", "totals"]

#: The version of the report's format; a change that breaks readers adds one.
SCHEMA = 1

#: Of the columns beside the names: outcome, counts and sizes, with the gaps between.
_WIDTH_OF_COUNTS = 54
_COLORS = {
    Outcome.APPLIED: "green",
    Outcome.ALREADY_UPSTREAM: "cyan",
    Outcome.NOT_APPLICABLE: "bright_black",
}


def to_json(
    base: Base,
    rewritten: Rewritten,
    transforms: Sequence[Transform],
    artifacts: Mapping[str, str],
) -> dict[str, Any]:
    """Return the report as plain data; `artifacts` maps file names to their sha256."""
    known = {transform.id: transform for transform in transforms}
    return {
        "schema": SCHEMA,
        "base": base.facts,
        "project_version": __version__,
        "transforms": [_entry(result, known[result.id]) for result in by_id(rewritten)],
        "artifacts": dict(sorted(artifacts.items())),
        "totals": totals(rewritten, transforms),
    }


def dumps(report: Mapping[str, Any]) -> str:
    """Return a report as the text of `report.json`: the same data gives the same text."""
    return json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `report.json`."""
    text = (files("rewriter") / "templates" / "report.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def table(rewritten: Rewritten, transforms: Sequence[Transform], *, color: bool, width: int) -> str:
    """Return the outcomes as a table, then every problem, then one line of totals.

    "lines" is the size of the transform, without its documentation and examples, "replaces" that of
    the monkey-patch, shared by the transforms of a row and empty where it is not known; a narrow
    terminal has no room for them. Without `color` the text holds no escape sequence.
    """
    known = {transform.id: transform for transform in transforms}
    results = by_id(rewritten)
    grid = Table(box=None, pad_edge=False, header_style=Style(bold=True), padding=(0, 2, 0, 0))
    grid.add_column("transform", overflow="fold")
    grid.add_column("seed", overflow="fold")
    grid.add_column("outcome", no_wrap=True)
    grid.add_column("files", justify="right")
    grid.add_column("+", justify="right")
    grid.add_column("-", justify="right")
    names = [(len(r.id), len(", ".join(known[r.id].seeds))) for r in results]
    sizes = sum(map(max, zip(*names, strict=True))) + _WIDTH_OF_COUNTS <= width if names else False
    if sizes:
        grid.add_column("lines", justify="right")
        grid.add_column("replaces", justify="right")
    for result in results:
        counts = [
            str(number) if result.files else ""
            for number in (
                len(result.files),
                sum(file.added for file in result.files),
                sum(file.removed for file in result.files),
            )
        ]
        transform = known[result.id]
        if sizes:
            counts += [str(transform.source_lines), str(transform.monkey_patch_lines or "")]
        style = _COLORS.get(result.outcome, "bold red")
        seeds = ", ".join(transform.seeds)
        outcome = Text(result.outcome.value, style)
        grid.add_row(Text(result.id), Text(seeds), outcome, *counts)
    # Written to memory, so that `color` alone decides, not what stdout or the environment is.
    console = Console(
        file=io.StringIO(),
        width=max(width, 40),
        color_system="standard" if color else None,
        force_terminal=color,
        no_color=not color,
        _environ={},
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(grid)
        for result in results:
            if result.problems or (result.outcome.failed and result.detail):
                console.print()
                console.print(_problems(result, known[result.id]), soft_wrap=True)
        console.print()
        console.print(Text(summary(rewritten)), soft_wrap=True)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _problems(result: Result, transform: Transform) -> Text:
    text = Text()
    text.append(result.id, "bold red")
    text.append(f" {result.outcome.value}: ")
    text.append(_visible(result.detail or transform.title))
    for problem in result.problems:
        for line in _problem_lines(problem):
            text.append("\n" + _visible(line))
    return text


def _problem_lines(problem: Problem) -> Iterable[str]:
    yield f"  {problem.path}{': ' + problem.scope if problem.scope else ''}"
    yield from _labelled("edit", problem.edit)
    yield from _labelled("expected", problem.expected)
    yield from _labelled("found", problem.found)
    for near in problem.nearest:
        yield from _labelled("nearest", f"{near.path}:{near.line}: {near.code.strip()}")
    if problem.looks_fixed:
        yield "    The base looks fixed already: see whether the transform can be dropped."


def _labelled(label: str, text: str) -> Iterable[str]:
    first, *more = text.expandtabs().splitlines() or [""]
    yield f"    {label:<10}{first}"
    yield from (f"{'':14}{line}" for line in more)


def _visible(text: str) -> str:
    """Replace control characters, which could play with a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _entry(result: Result, transform: Transform) -> dict[str, Any]:
    changes = sorted(result.files, key=lambda file: file.path)
    return {
        "id": result.id,
        "seed": list(transform.seeds),
        "outcome": result.outcome.value,
        "files": [
            {
                "path": file.path,
                "edits": file.edits,
                "added": file.added,
                "removed": file.removed,
            }
            for file in changes
        ],
        "detail": result.detail,
        "problems": [_problem_entry(problem) for problem in result.problems],
        "upstream": {"status": transform.upstream.status, "detail": transform.upstream.detail},
        "lines_transform": transform.source_lines,
        "lines_monkey_patch": transform.monkey_patch_lines,
        "inserted": sum(file.added for file in changes),
    }


def _problem_entry(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "scope": problem.scope,
        "edit": problem.edit,
        "expected": problem.expected,
        "found": problem.found,
        "nearest": [
            {"path": near.path, "line": near.line, "code": near.code} for near in problem.nearest
        ],
        "looks_fixed": problem.looks_fixed,
    }
