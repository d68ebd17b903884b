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
    comments_below,
    expression_writes,
    line_end,
    line_start,
)
from rewriter.edit import Edit, Found
from rewriter.snippet import Snippet, SnippetError, walk
from rewriter.source import Node, Scope, SourceError


def _bodies(scope: Scope) -> list[Sequence[cst.CSTNode]]:
    return [
        node.node.body
        for node in scope.nodes
        if isinstance(node.node, (cst.IndentedBlock, cst.Module))
    ]


def _runs(
    scope: Scope, snippet: Snippet, *, wild: bool = True
) -> list[tuple[Sequence[cst.CSTNode], int]]:
    """Every place where the statements of the snippet stand one after the other."""
    return [
        (body, index)
        for body in _bodies(scope)
        for index in range(len(body))
        if snippet.match_run(body, index, wild=wild)
    ]


def statement_start(scope: Scope, statement: cst.CSTNode) -> int:
    """Where a statement begins, with the decorators that libcst places apart."""
    decorators = getattr(statement, "decorators", ())
    return scope.span(decorators[0] if decorators else statement)[0]


def _end(scope: Scope, statement: cst.CSTNode, indent: bytes) -> int:
    """The end of a statement's last line, with the comments that end its block."""
    data = scope.source.data
    end = line_end(data, scope.span(statement)[1])
    compound = isinstance(statement, cst.BaseCompoundStatement)
    return comments_below(data, end, indent) if compound else end


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
        done = [node for node in scope.nodes if self.put.match(node.node, wild=False)]
        # What is found inside its own result has been replaced already.
        inside = {id(below) for node in done for below, _ in walk(node.node)}
        todo = [n for n in scope.nodes if self.find.match(n.node) and id(n.node) not in inside]
        return Found(tuple(self._change(scope, node) for node in todo), len(done))

    def _change(self, scope: Scope, node: Node) -> Change:
        put = self.put.put(node.parent, node.node)
        writes = expression_writes(scope.source.data, node.start, node.end, put)
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
        done = _runs(scope, self.put, wild=False)
        size, room = len(self.find.statements), len(self.put.statements)
        todo = [
            self._change(scope, body, index)
            for body, index in _runs(scope, self.find)
            # What is found inside its own result has been replaced already.
            if not any(body is b and i <= index and index + size <= i + room for b, i in done)
        ]
        if not self.put.statements and not todo:
            return Found((), self.count)
        return Found(tuple(todo), len(done))

    def _change(self, scope: Scope, body: Sequence[cst.CSTNode], index: int) -> Change:
        data = scope.source.data
        first = statement_start(scope, body[index])
        start = line_start(data, first)
        indent = data[start:first]
        end = _end(scope, body[index + len(self.find.statements) - 1], indent)
        if self.with_comments:
            start = comments_above(data, start, indent, gaps=True)
        text = block(self.put.text, indent, scope.source.newline) if self.put.statements else b""
        if not data[:end].endswith((b"\n", b"\r")):
            text = text.removesuffix(scope.source.newline)
        return Change(start, end, (Write(start, end, text),))


def replace(find: str, put: str, *, count: int = 1, with_comments: bool = False) -> Edit:
    """Replace an expression, or one or more statements; an empty `put` removes statements.

    Code to be removed that is not there counts as removed, so a removal does not drift: where that
    matters, replace it together with a statement beside it, by that statement. `with_comments`
    takes away the comments above the statements too. Raises SnippetError.
    """
    old, new = Snippet.parse(find), Snippet.parse(put)
    if old.text == new.text:
        raise SnippetError(f"nothing to replace: {find!r} stays as it is")
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
            if scope.name and body is getattr(scope.root, "body", None):
                raise SourceError("the scope itself; name the scope around it")
            size = len(self.find.statements)
            beside = index + size if self.after else index - len(self.put.statements)
            if self.put.match_run(body, beside, wild=False):
                done += 1
            else:
                todo.append(self._change(scope, body, index))
        return Found(tuple(todo), done)

    def _change(self, scope: Scope, body: Sequence[cst.CSTNode], index: int) -> Change:
        data, newline = scope.source.data, scope.source.newline
        first = statement_start(scope, body[index])
        above = line_start(data, first)
        indent = data[above:first]
        text = block(self.put.text, indent, newline)
        if self.after:
            point = _end(scope, body[index + len(self.find.statements) - 1], indent)
            if not data[:point].endswith((b"\n", b"\r")):
                text = newline + text.removesuffix(newline)
        else:
            point = comments_above(data, above, indent)
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
