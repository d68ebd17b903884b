"""Edits that set or add one element: a keyword argument, an item, a dict entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from rewriter.change import Change, Frame, Write, expression_writes, line_end, line_start
from rewriter.edit import Edit, Found
from rewriter.snippet import Snippet, SnippetError, same
from rewriter.source import Node, Scope


def expression(source: str) -> Snippet:
    """Parse an expression. Raises SnippetError for anything else."""
    snippet = Snippet.parse(source)
    if snippet.expression is None:
        raise SnippetError(f"an expression is needed, not {source!r}")
    return snippet


def _name(text: str) -> str:
    """Return the name that is assigned to. Raises SnippetError for anything else."""
    if not isinstance(text, str) or not text.isidentifier():
        raise SnippetError(f"a plain name is needed, not {text!r}")
    return text


def _append(
    scope: Scope,
    close: int,
    items: Sequence[Any],
    text: str,
    name: str,
    *,
    lone: bytes = b"",
    on_one_line: bool = False,
) -> Change:
    """Add `text` as the last of `items`, whose closing bracket is at `close`.

    Just before the bracket the insertion is right whatever comments stand behind the last item.
    `lone` is what must stand behind a single item (a tuple's comma).
    """
    if not items:
        frame = Frame(b"", b", ", lone)
    elif not isinstance(items[-1].comma, cst.Comma):
        frame = Frame(b", ", b", ")
    elif lone and len(items) == 1 and on_one_line:
        frame = Frame(b" ", b", ")  # that comma says nothing about the layout
    else:
        # A trailing comma tells the formatter to keep one item on each line.
        frame = Frame(b"", b",", b",")
    return Change(close, close, (Write(close, close, text.encode(), frame),), True, name)


def insert_behind(
    scope: Scope, element: Any, following: Any, text: str, name: str, *, commutes: bool
) -> Change:
    """Add `text` between two elements, below the line of the first, whose comment stays with it."""
    data, newline = scope.source.data, scope.source.newline
    point, next_start = line_end(data, scope.span(element.comma)[1]), scope.span(following)[0]
    if point > line_start(data, next_start):
        write = Write(next_start, next_start, f"{text}, ".encode())
    else:
        write = Write(point, point, f"{text},".encode() + newline)
    return Change(write.start, write.start, (write,), commutes, name)


@dataclass(frozen=True)
class _Keyword(Edit):
    call: Snippet
    name: str
    value: Snippet
    was: Snippet | None = None
    add: bool = False
    count: int = 1
    is_code = False

    def describe(self) -> str:
        verb = "add" if self.add else "set"
        return f"{verb} `{self.name}={self.value.one_line}` in `{self.call.text}`"

    @property
    def pattern(self) -> str:
        return self.call.text

    @property
    def result(self) -> str:
        return f"{self.name}={self.value.text}"

    def stands(self, scope: Scope) -> bool:
        """Whether a call of any function has the argument."""
        arguments = [node.node for node in scope.nodes if isinstance(node.node, cst.Arg)]
        named = [a for a in arguments if a.keyword and a.keyword.value == self.name]
        return any(same(self.value.expression, a.value, False) for a in named)

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for node in scope.nodes:
            if not isinstance(node.node, cst.Call):
                continue
            given = [a for a in node.node.args if a.keyword and a.keyword.value == self.name]
            if not self._matches(node.node, given):
                continue
            if given and same(self.value.expression, given[0].value, False):
                done += 1
            elif self.add and not given:
                todo.append(self._added(scope, node, node.node.args))
            elif not self.add and given and self._expected(given[0]):
                value = given[0].value
                start, end = scope.span(value)
                writes = expression_writes(
                    scope.source.data, start, end, self.value.put(given[0], value)
                )
                todo.append(Change(start, end, writes))
        return Found(tuple(todo), done)

    def _matches(self, call: cst.Call, given: Sequence[cst.Arg]) -> bool:
        """Whether the call is the one looked for, with the keyword or without it."""
        if self.call.match(call):
            return True
        rest = [arg for arg in call.args if arg not in given]
        return bool(given) and self.call.match(call.with_changes(args=rest))

    def _added(self, scope: Scope, node: Node, args: Sequence[cst.Arg]) -> Change:
        text = f"{self.name}={self.value.put(None)}"
        change = _append(scope, node.end - 1, args, text, self.name)
        value = args[0].value if len(args) == 1 else None
        if isinstance(value, cst.GeneratorExp) and not value.lpar:
            # Only the sole argument of a call goes without parentheses of its own.
            start, end = scope.span(value)
            around = Write(start, start, b"("), Write(end, end, b")")
            return replace(change, writes=(*around, *change.writes))
        return change

    def _expected(self, arg: cst.Arg) -> bool:
        return self.was is None or same(self.was.expression, arg.value)


def _one_keyword(keyword: dict[str, str]) -> tuple[str, str]:
    if len(keyword) != 1:
        raise SnippetError(f"one keyword argument is needed, not {len(keyword)}")
    return next(iter(keyword.items()))


def set_keyword(call: str, *, was: str | None = None, count: int = 1, **keyword: str) -> Edit:
    """Give a keyword argument that the call has another value.

    `was` is the value it must have now (any by default). A call without the keyword is not a match.
    Raises SnippetError.
    """
    name, value = _one_keyword(keyword)
    old = None if was is None else expression(was)
    return _Keyword(expression(call), name, expression(value), old, False, count)


def add_keyword(call: str, *, count: int = 1, **keyword: str) -> Edit:
    """Give a call a keyword argument that it does not have. Raises SnippetError."""
    name, value = _one_keyword(keyword)
    return _Keyword(expression(call), name, expression(value), None, True, count)


def _assigned(scope: Scope, name: str, kinds: tuple[type, ...]) -> list[Node]:
    """The displays that are assigned to `name` in the scope."""
    values = []
    for node in scope.nodes:
        statement = node.node
        if isinstance(statement, cst.Assign):
            named = [t.target for t in statement.targets]
        elif isinstance(statement, cst.AnnAssign):
            named = [statement.target]
        else:
            continue
        if any(isinstance(t, cst.Name) and t.value == name for t in named):
            values.append(statement.value)
    return [
        scope.place(value) for value in values if value is not None and isinstance(value, kinds)
    ]


@dataclass(frozen=True)
class _Item(Edit):
    to: str
    value: Snippet
    count: int = 1

    def describe(self) -> str:
        return f"add `{self.value.one_line}` to `{self.to}`"

    @property
    def pattern(self) -> str:
        return f"{self.to} = ..."

    @property
    def result(self) -> str:
        return self.value.text

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for node in _assigned(scope, self.to, (cst.List, cst.Tuple, cst.Set)):
            display = node.node
            assert isinstance(display, (cst.List, cst.Tuple, cst.Set))
            if any(same(self.value.expression, e.value, False) for e in display.elements):
                done += 1
            else:
                todo.append(self._append(scope, display))
        return Found(tuple(todo), done)

    def _append(self, scope: Scope, display: cst.List | cst.Set | cst.Tuple) -> Change:
        text, items = self.value.put(None), display.elements
        start, end = scope.span(display)
        if not isinstance(display, cst.Tuple):
            return _append(scope, end - 1, items, text, "")
        start, outer_end = scope.outer_span(display)
        one_line = len(scope.source.data[start:outer_end].splitlines()) == 1
        return _append(scope, end, items, text, "", lone=b",", on_one_line=one_line)


def add_item(to: str, value: str, *, count: int = 1) -> Edit:
    """Add an item at the end of the list, set or tuple assigned to the name `to`.

    Raises SnippetError.
    """
    return _Item(_name(to), expression(value), count)


@dataclass(frozen=True)
class _Entry(Edit):
    to: str
    key: Snippet
    value: Snippet
    after: Snippet | None = None
    count: int = 1
    is_code = False

    def describe(self) -> str:
        return f"add the entry `{self.result}` to `{self.to}`"

    @property
    def pattern(self) -> str:
        return f"{self.to} = ..." if self.after is None else self.after.text

    @property
    def result(self) -> str:
        return f"{self.key.put(None)}: {self.value.put(None)}"

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for node in _assigned(scope, self.to, (cst.Dict,)):
            assert isinstance(node.node, cst.Dict)
            pairs = [e for e in node.node.elements if isinstance(e, cst.DictElement)]
            given = [e for e in pairs if same(self.key.expression, e.key, False)]
            if given and same(self.value.expression, given[0].value, False):
                done += 1
            elif not given:
                change = self._change(scope, node, node.node.elements, pairs)
                todo += [change] if change else []
        return Found(tuple(todo), done)

    def _change(
        self, scope: Scope, node: Node, elements: Sequence[Any], pairs: list[cst.DictElement]
    ) -> Change | None:
        following: list[Any] = []
        if self.after is not None:
            matches = [e for e in pairs if same(self.after.expression, e.key)]
            if not matches:
                return None
            following = list(elements)[list(elements).index(matches[0]) + 1 :]
        name = self.key.one_line
        if not following:
            return _append(scope, node.end - 1, elements, self.result, name)
        return insert_behind(scope, matches[0], following[0], self.result, name, commutes=True)


def add_entry(to: str, key: str, value: str, *, after: str | None = None, count: int = 1) -> Edit:
    """Add an entry to the dict assigned to the name `to`, behind the key `after` or at the end.

    Raises SnippetError.
    """
    behind = None if after is None else expression(after)
    return _Entry(_name(to), expression(key), expression(value), behind, count)
