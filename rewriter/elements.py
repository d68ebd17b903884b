"""Edits that set or add one element: an argument, an item, an entry, a decorator, a member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from rewriter.change import Change, Write, block, expression_writes, line_end, line_start
from rewriter.edit import Edit, Found
from rewriter.snippet import Snippet, SnippetError, same
from rewriter.source import Node, Scope, SourceError


def _expression(source: str) -> Snippet:
    snippet = Snippet.parse(source)
    if snippet.expression is None:
        raise SnippetError(f"an expression is needed, not {source!r}")
    return snippet


def _append(scope: Scope, close: int, items: Sequence[Any], text: str) -> Change:
    """Add `text` as the last of `items`, whose closing bracket is at `close`.

    Just before the bracket the insertion is right whatever comments stand behind the last item.
    """
    trailing = bool(items) and isinstance(items[-1].comma, cst.Comma)
    before = "" if trailing or not items else ", "
    # A trailing comma tells the formatter to keep one item on each line.
    written = f"{before}{text}{',' if trailing else ''}"
    return Change(close, close, (Write(close, close, written.encode()),), commutes=True)


@dataclass(frozen=True)
class _Keyword(Edit):
    call: Snippet
    name: str
    value: Snippet
    was: Snippet | None = None
    add: bool = False
    count: int = 1

    def describe(self) -> str:
        verb = "add" if self.add else "set"
        return f"{verb} `{self.name}={self.value.one_line}` in `{self.call.text}`"

    @property
    def pattern(self) -> str:
        return self.call.text

    @property
    def result(self) -> str:
        return f"{self.name}={self.value.text}"

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for node in scope.nodes:
            if not isinstance(node.node, cst.Call) or not self.call.match(node.node):
                continue
            given = [a for a in node.node.args if a.keyword and a.keyword.value == self.name]
            if given and same(self.value.expression, given[0].value):
                done += 1
            elif self.add and not given:
                text = f"{self.name}={self.value.one_line}"
                todo.append(_append(scope, node.end - 1, node.node.args, text))
            elif not self.add and given and self._expected(given[0]):
                place = scope.place(given[0].value)
                write = Write(place.start, place.end, self.value.one_line.encode())
                todo.append(Change(place.start, place.end, (write,)))
        return Found(tuple(todo), done)

    def _expected(self, arg: cst.Arg) -> bool:
        return self.was is None or same(self.was.expression, arg.value)


def set_keyword(call: str, *, was: str | None = None, count: int = 1, **keyword: str) -> Edit:
    """Give a keyword argument that the call has another value.

    `was` is the value it must have now (any by default). A call without the keyword is not a match.
    Raises SnippetError.
    """
    ((name, value),) = keyword.items()
    old = None if was is None else _expression(was)
    return _Keyword(_expression(call), name, _expression(value), old, False, count)


def add_keyword(call: str, *, count: int = 1, **keyword: str) -> Edit:
    """Give a call a keyword argument that it does not have. Raises SnippetError."""
    ((name, value),) = keyword.items()
    return _Keyword(_expression(call), name, _expression(value), None, True, count)


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
            if any(same(self.value.expression, element.value) for element in display.elements):
                done += 1
            else:
                close = node.end if isinstance(display, cst.Tuple) else node.end - 1
                todo.append(_append(scope, close, display.elements, self.value.one_line))
        return Found(tuple(todo), done)


def add_item(to: str, value: str, *, count: int = 1) -> Edit:
    """Add an item at the end of the list, set or tuple assigned to the name `to`."""
    return _Item(to, _expression(value), count)


@dataclass(frozen=True)
class _Entry(Edit):
    to: str
    key: Snippet
    value: Snippet
    after: Snippet | None = None
    count: int = 1

    def describe(self) -> str:
        return f"add the entry `{self.result}` to `{self.to}`"

    @property
    def pattern(self) -> str:
        return f"{self.to} = ..." if self.after is None else self.after.text

    @property
    def result(self) -> str:
        return f"{self.key.one_line}: {self.value.one_line}"

    def locate(self, scope: Scope) -> Found:
        todo, done = [], 0
        for node in _assigned(scope, self.to, (cst.Dict,)):
            assert isinstance(node.node, cst.Dict)
            pairs = [e for e in node.node.elements if isinstance(e, cst.DictElement)]
            given = [e for e in pairs if same(self.key.expression, e.key)]
            if given and same(self.value.expression, given[0].value):
                done += 1
            elif not given:
                change = self._change(scope, node, node.node.elements, pairs)
                todo += [change] if change else []
        return Found(tuple(todo), done)

    def _change(
        self, scope: Scope, node: Node, elements: Sequence[Any], pairs: list[cst.DictElement]
    ) -> Change | None:
        if self.after is None:
            return _append(scope, node.end - 1, elements, self.result)
        found = [e for e in pairs if same(self.after.expression, e.key)]
        if not found:
            return None
        # Below the line of its neighbour, whose comment (if any) stays with it.
        following = elements[list(elements).index(found[0]) + 1 :]
        if not following:
            return _append(scope, node.end - 1, elements, self.result)
        data = scope.source.data
        neighbour = scope.place(found[0].value)
        next_start = scope.place(getattr(following[0], "key", following[0].value)).start
        point = line_end(data, neighbour.end)
        if point > line_start(data, next_start):
            point = next_start
        text = f"{self.result}, ".encode()
        if point != next_start:
            text = text.rstrip() + scope.source.newline
        return Change(point, point, (Write(point, point, text),), commutes=True)


def add_entry(to: str, key: str, value: str, *, after: str | None = None, count: int = 1) -> Edit:
    """Add an entry to the dict assigned to the name `to`, behind the key `after` or at the end."""
    behind = None if after is None else _expression(after)
    return _Entry(to, _expression(key), _expression(value), behind, count)


@dataclass(frozen=True)
class _OnDefinition(Edit):
    """An addition to the definition that the scope is; `make` gives None if it is there."""

    words: str
    text: str
    make: Callable[[Scope, Node], Change | None]
    count: int = 1

    def describe(self) -> str:
        return f"add the {self.words} `{self.text}`"

    @property
    def pattern(self) -> str:
        return ""

    @property
    def result(self) -> str:
        return self.text

    def locate(self, scope: Scope) -> Found:
        change = self.make(scope, scope.definition)
        return Found((), 1) if change is None else Found((change,), 0)


def add_decorator(decorator: str) -> Edit:
    """Add an outermost decorator, given without `@`, to the scope's function or class."""
    snippet = _expression(decorator)

    def make(scope: Scope, node: Node) -> Change | None:
        definition: Any = node.node
        if any(same(snippet.expression, d.decorator) for d in definition.decorators):
            return None
        text = block(f"@{snippet.one_line}", scope.indent, scope.source.newline)
        return Change(scope.start, scope.start, (Write(scope.start, scope.start, text),))

    return _OnDefinition("decorator", decorator, make)


def add_base(base: str) -> Edit:
    """Add a last base class to the scope's class."""
    snippet = _expression(base)

    def make(scope: Scope, node: Node) -> Change | None:
        definition = node.node
        if not isinstance(definition, cst.ClassDef):
            raise SourceError("a function, not a class")
        if any(same(snippet.expression, b.value) for b in definition.bases):
            return None
        name = scope.place(definition.name)
        if not isinstance(definition.lpar, cst.LeftParen):
            write = Write(name.end, name.end, f"({base})".encode())
            return Change(name.end, name.end, (write,))
        if not definition.bases:
            point = scope.source.data.index(b"(", name.end) + 1
            text = f"{base}, " if definition.keywords else base
        else:
            last = scope.place(definition.bases[-1].value)
            point, text = last.end + len(definition.bases[-1].value.rpar), f", {base}"
        return Change(point, point, (Write(point, point, text.encode()),))

    return _OnDefinition("base class", base, make)


def _parse_parameter(parameter: str) -> cst.Param:
    try:
        parsed = cst.parse_statement(f"def f({parameter}): ...")
        (found,) = cst.ensure_type(parsed, cst.FunctionDef).params.params
    except (cst.ParserSyntaxError, ValueError):
        raise SnippetError(f"one parameter is needed, not {parameter!r}") from None
    return found


def _parameters(definition: cst.CSTNode) -> list[cst.Param]:
    if not isinstance(definition, cst.FunctionDef):
        raise SourceError("a class, not a function")
    groups = definition.params
    return [*groups.posonly_params, *groups.params, *groups.kwonly_params]


def _parameter_end(scope: Scope, parameter: cst.Param) -> int:
    annotation = parameter.annotation.annotation if parameter.annotation else None
    last = parameter.default or annotation or parameter.name
    return scope.span(last)[1] + len(last.rpar)


def add_parameter(parameter: str, *, after: str) -> Edit:
    """Add a parameter ("name: type = default") behind the parameter `after` of the function."""
    name = _parse_parameter(parameter).name.value

    def make(scope: Scope, node: Node) -> Change | None:
        given = _parameters(node.node)
        if any(p.name.value == name for p in given):
            return None
        behind = [p for p in given if p.name.value == after]
        if not behind:
            raise SourceError(f"no parameter `{after}`")
        point = _parameter_end(scope, behind[0])
        return Change(point, point, (Write(point, point, f", {parameter}".encode()),))

    return _OnDefinition("parameter", parameter, make)


def set_parameter(parameter: str, *, was: str) -> Edit:
    """Give a parameter of the function another annotation or default than it has now (`was`)."""
    new, old = _parse_parameter(parameter), _parse_parameter(was)

    def make(scope: Scope, node: Node) -> Change | None:
        named = [p for p in _parameters(node.node) if p.name.value == old.name.value]
        if named and _same_parameter(new, named[0]):
            return None
        if not named or not _same_parameter(old, named[0]):
            raise SourceError(f"no parameter `{was}`")
        start, end = scope.span(named[0].name)[0], _parameter_end(scope, named[0])
        return Change(start, end, expression_writes(scope.source.data, start, end, parameter))

    return _OnDefinition("parameter", parameter, make)


def _same_parameter(pattern: cst.Param, node: cst.Param) -> bool:
    parts = ("name", "annotation", "default")
    return all(same(getattr(pattern, part), getattr(node, part)) for part in parts)


def add_member(code: str, *, after: str | None = None) -> Edit:
    """Add fields or methods to the scope's class, below the member `after` or at its end."""
    snippet = Snippet.parse(code)

    def make(scope: Scope, node: Node) -> Change | None:
        definition = node.node
        if not isinstance(definition, cst.ClassDef):
            raise SourceError("a function, not a class")
        body = definition.body.body
        if any(snippet.match_run(body, index) for index in range(len(body))):
            return None
        members = [s for s in body if after in _member_names(s)] if after else [body[-1]]
        if not members:
            raise SourceError(f"no member `{after}`")
        data, newline = scope.source.data, scope.source.newline
        first = scope.place(body[0])
        point = line_end(data, scope.place(members[-1]).end)
        indent = data[line_start(data, first.start) : first.start]
        text = block(snippet.text, indent, newline)
        if not data[:point].endswith((b"\n", b"\r")):
            text = newline + text.removesuffix(newline)
        return Change(point, point, (Write(point, point, text),), commutes=True)

    return _OnDefinition("member", snippet.text, make)


def _member_names(statement: cst.CSTNode) -> list[str]:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return [statement.name.value]
    names = []
    for part in (
        getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ()
    ):
        targets = [t.target for t in part.targets] if isinstance(part, cst.Assign) else []
        targets += [part.target] if isinstance(part, cst.AnnAssign) else []
        names += [t.value for t in targets if isinstance(t, cst.Name)]
    return names
