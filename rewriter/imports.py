"""Imports that edits add or drop. They are the file's, not an edit's: each is added once.

A new import is put behind the last one of the longest run of imports; ruff's isort rules then
give it its canonical place, the same whatever asked for it first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rewriter.change import Write, line_end, line_start
from rewriter.source import Source


@dataclass(frozen=True, order=True)
class Import:
    """`import module`, or `from module import name` (level counts the leading dots)."""

    module: str
    name: str = ""
    level: int = 0

    def __str__(self) -> str:
        """Return the statement."""
        if not self.name:
            return f"import {self.module}"
        return f"from {'.' * self.level}{self.module} import {self.name}"


def parse_imports(statement: str) -> tuple[Import, ...]:
    """Split an import statement. Raises ValueError for anything else, and for `as`."""
    try:
        (node,) = ast.parse(statement).body
    except (SyntaxError, ValueError):
        raise ValueError(f"not one import statement: {statement!r}") from None
    found = tuple(_imports(node))
    if not found or any(a.asname for a in getattr(node, "names", [])):
        raise ValueError(f"not a plain import statement: {statement!r}")
    return found


def _imports(node: ast.stmt) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names if not alias.asname)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if not alias.asname:
                yield Import(node.module or "", alias.name, node.level)


def present(source: Source) -> frozenset[Import]:
    """Return the imports at the top level of the file."""
    return frozenset(found for node in source.tree.body for found in _imports(node))


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _last_import(source: Source) -> int:
    """Return the end of the line behind which a new import goes."""
    runs: list[list[ast.stmt]] = [[]]
    for node in source.tree.body:
        if _is_import(node):
            runs[-1].append(node)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    if longest:
        return source.lines[longest[-1].end_lineno or 0]
    body = source.tree.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return source.lines[body[0].end_lineno or 0]
    return source.lines[body[0].lineno - 1] if body else source.start


def import_writes(source: Source, add: Iterable[Import], drop: Iterable[Import]) -> list[Write]:
    """Return the writes that give the file the imports `add` and take `drop` away."""
    here, wanted = present(source), frozenset(add)
    unwanted = frozenset(drop) - wanted
    writes = []
    missing = sorted(wanted - here)
    if missing:
        point = _last_import(source)
        text = b"".join(f"{item}".encode() + source.newline for item in missing)
        if not source.data[:point].endswith((b"\n", b"\r")) and point:
            text = source.newline + text
        writes.append(Write(point, point, text))
    for node in source.tree.body:
        here_now = list(_imports(node))
        if len(here_now) == 1 and here_now[0] in unwanted:
            start = line_start(source.data, source.lines[node.lineno - 1])
            end = line_end(source.data, source.lines[(node.end_lineno or node.lineno) - 1])
            writes.append(Write(start, end, b""))
    return writes
