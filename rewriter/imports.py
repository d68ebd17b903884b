"""Imports that edits add or drop. They are the file's, not an edit's: each is added once.

A new import is put behind the last one of the longest run of imports; ruff's isort rules then
give it its canonical place, the same whatever asked for it first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rewriter.change import Write, comments_above, line_end, line_start
from rewriter.snippet import SnippetError
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
    """Split an import statement. Raises SnippetError for anything else, and for `as` and `*`."""
    try:
        (node,) = ast.parse(statement).body
    except (SyntaxError, ValueError, TypeError):
        raise SnippetError(f"not one import statement: {statement!r}") from None
    found = tuple(_imports(node))
    if not found or any(a.asname or a.name == "*" for a in getattr(node, "names", [])):
        raise SnippetError(f"not a plain import statement: {statement!r}")
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
    return frozenset(found for node in source.head for found in _imports(node))


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _below(source: Source, node: ast.stmt) -> int:
    """Return the end of the last line of a statement, and of what else begins on that line."""
    last = node.end_lineno or node.lineno
    for other in source.head:
        if other.lineno <= last < (other.end_lineno or 0):
            last = other.end_lineno or last
    return source.lines[last]


def _behind_docstring(source: Source) -> int:
    """Return where the first import of a file goes."""
    body = source.head
    if not body:
        return len(source.data)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return _below(source, body[0])
    first = source.lines[_first_line(body[0]) - 1]
    above = comments_above(source.data, first, b"")
    # Comments at the very top are the file's, those below an empty line are the statement's.
    return first if above <= source.start else above


def _last_import(source: Source) -> int:
    """Return the end of the line behind which a new import goes."""
    runs: list[list[ast.stmt]] = [[]]
    for node in source.head:
        if _is_import(node):
            runs[-1].append(node)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    return _below(source, longest[-1]) if longest else _behind_docstring(source)


def _added(source: Source, missing: Iterable[Import], point: int) -> list[Write]:
    text = b"".join(f"{item}".encode() + source.newline for item in missing)
    if text and point > source.start and not source.data[:point].endswith((b"\n", b"\r")):
        text = source.newline + text.removesuffix(source.newline)
    return [Write(point, point, text)] if text else []


def _dropped(source: Source, unwanted: frozenset[Import]) -> Iterator[Write]:
    body = source.head
    for index, node in enumerate(body):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        gone = [bool(unwanted.intersection(_imports(_only(node, a)))) for a in node.names]
        if all(gone):
            yield _without(source, node, body[index + 1 :])
        elif any(gone):
            yield from _names_cut(source, node.names, gone)


def _only(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(node, ast.Import):
        return ast.Import(names=[alias])
    return ast.ImportFrom(module=node.module, names=[alias], level=node.level)


def _offset(source: Source, line: int | None, column: int | None) -> int:
    return source.lines[(line or 1) - 1] + (column or 0)


def _without(source: Source, node: ast.stmt, following: list[ast.stmt]) -> Write:
    """Take a whole statement away, and its line if it is alone there."""
    start = _offset(source, node.lineno, node.col_offset)
    end = _offset(source, node.end_lineno, node.end_col_offset)
    if following and following[0].lineno == node.end_lineno:
        return Write(start, _offset(source, node.end_lineno, following[0].col_offset), b"")
    begin = line_start(source.data, start)
    if begin == start:
        return Write(begin, line_end(source.data, end), b"")
    before = source.data[begin:start].rstrip(b"; \t")  # `import a; import b`
    return Write(begin + len(before), end, b"")


def _names_cut(source: Source, names: list[ast.alias], gone: list[bool]) -> Iterator[Write]:
    """Take names out of the list of an import that keeps others, each with one comma."""
    last_kept = max(i for i, is_gone in enumerate(gone) if not is_gone)
    starts = [_offset(source, a.lineno, a.col_offset) for a in names]
    ends = [_offset(source, a.end_lineno, a.end_col_offset) for a in names]
    for index, is_gone in enumerate(gone[:last_kept]):
        if is_gone:
            yield Write(starts[index], starts[index + 1], b"")
    if last_kept + 1 < len(names):
        yield Write(ends[last_kept], ends[-1], b"")


def import_writes(source: Source, add: Iterable[Import], drop: Iterable[Import]) -> list[Write]:
    """Return the writes that give the file the imports `add` and take `drop` away."""
    wanted = frozenset(add)
    missing = sorted(wanted - present(source))
    future = [item for item in missing if item.module == "__future__"]
    others = [item for item in missing if item.module != "__future__"]
    writes = list(_dropped(source, frozenset(drop) - wanted))
    if future:
        # Only a docstring and its like may stand above them.
        writes += _added(source, future, _behind_docstring(source))
    if others:
        writes += _added(source, others, _last_import(source))
    return writes
