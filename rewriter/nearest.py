"""For the report of an edit that does not fit: where similar code stands now."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from rewriter.outcome import Near
from rewriter.snippet import Snippet
from rewriter.source import Source, SourceError

_LIKENESS = 0.5  # below it "nearest" would mislead


def _pieces(source: Source, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Yield the statements and calls between two lines, each with its line."""
    try:
        tree = source.tree
    except SourceError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.Call)) and first <= node.lineno <= last:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            start = source.lines[node.lineno - 1] + node.col_offset
            end = source.lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            yield node.lineno, source.data[start:end].decode("utf-8", "replace")


def _flat(code: str) -> str:
    return " ".join(code.split())


def nearest(path: str, source: Source, pattern: str, first: int, last: int) -> tuple[Near, ...]:
    """Return the piece of code between two lines that is most like `pattern`, if any is."""
    wanted = _flat(pattern)
    if not wanted:
        return ()
    best = (_LIKENESS, 0, "")
    for line, code in _pieces(source, first, last):
        flat = _flat(code)
        if len(flat) > 4 * len(wanted) + 80:
            continue
        matcher = SequenceMatcher(None, wanted, flat, autojunk=False)
        if matcher.real_quick_ratio() > best[0] and matcher.quick_ratio() > best[0]:
            ratio = matcher.ratio()
            if ratio > best[0]:
                best = (ratio, line, flat)
    return (Near(path, best[1], best[2][:200]),) if best[1] else ()


def moved(root: Path, name: str, path: str) -> tuple[Near, ...]:
    """Return definitions in the base that have the name a missing scope had.

    Those in the file at `path` come first, then those in its folder.
    """
    word = name.encode()
    pattern = re.compile(
        rb"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+%b\b.*$|^%b[ \t]*[:=].*$"
        % (re.escape(word), re.escape(word)),
        re.MULTILINE,
    )
    found = []
    for file in (root / "vllm").rglob("*.py"):
        data = file.read_bytes()
        if word not in data:
            continue
        for match in pattern.finditer(data):
            line = data.count(b"\n", 0, match.start()) + 1
            code = match.group().decode("utf-8", "replace").strip()
            found.append(Near(file.relative_to(root).as_posix(), line, code[:200]))
    folder = path.rpartition("/")[0]
    found.sort(key=lambda n: (n.path != path, n.path.rpartition("/")[0] != folder, n.path, n.line))
    return tuple(found[:3])


def same_name(root: Path, path: str) -> tuple[Near, ...]:
    """Return the files of the base that are named as a missing one was."""
    name = path.rpartition("/")[2]
    if name == "__init__.py":
        return ()
    files = sorted(p.relative_to(root).as_posix() for p in (root / "vllm").rglob(name))
    return tuple(Near(file, 1, "a file of the same name") for file in files[:3])


def elsewhere(path: str, source: Source, snippet: Snippet) -> tuple[Near, ...]:
    """Return where in the whole file the very code stands, in another scope."""
    try:
        nodes = source.scope("").nodes
    except SourceError:
        return ()
    found = [node for node in nodes if snippet.match(node.node)]
    data = source.data
    return tuple(
        Near(path, source.line_of(node.start), _flat(data[node.start : node.end].decode())[:200])
        for node in found[:3]
    )
