"""Edits that replace expressions and statements, and that insert statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from rewriter.change import (
    Change,
    Write,
    block,
    comments_above,
    expression_writes,
    line_end,
    line_start,
)
from rewriter.edit import Edit, Found
from rewriter.snippet import Snippet, SnippetError, needs_parentheses, walk
from rewriter.source import Node, Scope


def _bodies(scope: Scope) -> list[Sequence[cst.CSTNode]]:
    return [
        node.node.body
        for node in scope.nodes
        if isinstance(node.node, (cst.IndentedBlock, cst.Module))
    ]


def _runs(scope: Scope, snippet: Snippet) -> list[tuple[Sequence[cst.CSTNode], int]]:
    """Every place where the statements of the snippet stand one after the other."""
    return [
        (body, index)
        for body in _bodies(scope)
        for index in range(len(body))
        if snippet.match_run(body, index)
    ]


def _start(scope: Scope, statement: cst.CSTNode) -> int:
    """Where a statement begins, with the decorators that libcst places apart."""
    decorators = getattr(statement, "decorators", ())
    return scope.span(decorators[0] if decorators else statement)[0]


@dataclass(frozen=True)
class _Code(Edit):
    """What `replace` and the insertions share: a snippet to find and a snippet to put."""

    find: Snippet
    put: Snippet
    count: int = 1

    @property
    def pattern(self) -> str:
        return self.find.text

    @property
    def result(self) -> str:
        return self.put.text


@dataclass(frozen=True)
class _ReplaceExpression(_Code):
    def describe(self) -> str:
        return f"replace `{self.find.one_line}` by `{self.put.one_line}`"

    def locate(self, scope: Scope) -> Found:
        done = [node for node in scope.nodes if self.put.match(node.node)]
        # What is found inside its own result has been replaced already.
        inside = {id(below) for node in done for below, _ in walk(node.node)}
        todo = [n for n in scope.nodes if self.find.match(n.node) and id(n.node) not in inside]
        return Found(tuple(self._change(scope, node) for node in todo), len(done))

    def _change(self, scope: Scope, node: Node) -> Change:
        put, data = self.put.one_line, scope.source.data
        bare = isinstance(node.node, cst.BaseExpression) and not node.node.lpar
        if self.put.loose and bare and needs_parentheses(node.parent):
            put = f"({put})"
        writes = expression_writes(data, node.start, node.end, put)
        return Change(node.start, node.end, writes)


@dataclass(frozen=True)
class _ReplaceStatements(_Code):
    with_comments: bool = False

    def describe(self) -> str:
        what = "the comments above and " if self.with_comments else ""
        if not self.put.statements:
            return f"remove {what}`{self.find.text}`"
        return f"replace {what}`{self.find.text}` by `{self.put.text}`"

    def locate(self, scope: Scope) -> Found:
        done = _runs(scope, self.put) if self.put.statements else []
        inside = {id(body[index]) for body, start in done for index in _span(self.put, start)}
        todo = [
            self._change(scope, body, index)
            for body, index in _runs(scope, self.find)
            if id(body[index]) not in inside
        ]
        return Found(tuple(todo), len(done))

    def _change(self, scope: Scope, body: Sequence[cst.CSTNode], index: int) -> Change:
        data = scope.source.data
        first = _start(scope, body[index])
        last = scope.span(body[index + len(self.find.statements) - 1])[1]
        start, end = line_start(data, first), line_end(data, last)
        indent = data[start:first]
        if self.with_comments:
            start = comments_above(data, start, gaps=True)
        text = block(self.put.text, indent, scope.source.newline) if self.put.statements else b""
        if not data[:end].endswith((b"\n", b"\r")):
            text = text.removesuffix(scope.source.newline)
        return Change(start, end, (Write(start, end, text),))


def _span(snippet: Snippet, start: int) -> range:
    return range(start, start + len(snippet.statements))


def replace(find: str, put: str, *, count: int = 1, with_comments: bool = False) -> Edit:
    """Replace an expression, or one or more statements; an empty `put` removes statements.

    `with_comments` takes away the comments above the statements too. Raises SnippetError.
    """
    old, new = Snippet.parse(find), Snippet.parse(put)
    if old.expression is not None and new.expression is not None and not with_comments:
        return _ReplaceExpression(old, new, count)
    if not old.statements or (put.strip() and not new.statements):
        raise SnippetError(f"an expression and a statement cannot replace each other: {find!r}")
    return _ReplaceStatements(old, new, count, with_comments)


@dataclass(frozen=True)
class _Insert(_Code):
    after: bool = True

    def describe(self) -> str:
        return f"insert `{self.put.text}` {'after' if self.after else 'before'} `{self.find.text}`"

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for body, index in _runs(scope, self.find):
            size = len(self.find.statements)
            beside = index + size if self.after else index - len(self.put.statements)
            if self.put.match_run(body, beside):
                done += 1
            else:
                todo.append(self._change(scope, body, index))
        return Found(tuple(todo), done)

    def _change(self, scope: Scope, body: Sequence[cst.CSTNode], index: int) -> Change:
        data, newline = scope.source.data, scope.source.newline
        first = _start(scope, body[index])
        above = line_start(data, first)
        text = block(self.put.text, data[above:first], newline)
        if self.after:
            point = line_end(data, scope.span(body[index + len(self.find.statements) - 1])[1])
            if not data[:point].endswith((b"\n", b"\r")):
                text = newline + text.removesuffix(newline)
        else:
            point = comments_above(data, above)
        return Change(point, point, (Write(point, point, text),))


def _insert(find: str, put: str, count: int, after: bool) -> Edit:
    anchor, new = Snippet.parse(find), Snippet.parse(put)
    if not anchor.statements or not new.statements:
        raise SnippetError(f"insertions take statements, not {find!r} and {put!r}")
    return _Insert(anchor, new, count, after)


def insert_after(find: str, put: str, *, count: int = 1) -> Edit:
    """Insert statements below the statements `find`, at their indentation. Raises SnippetError."""
    return _insert(find, put, count, after=True)


def insert_before(find: str, put: str, *, count: int = 1) -> Edit:
    """Insert statements above `find` and the comments on it. Raises SnippetError."""
    return _insert(find, put, count, after=False)
