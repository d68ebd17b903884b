"""Edits of the definition that a scope is: a decorator, a base, a parameter, a member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from rewriter.change import (
    Change,
    Frame,
    Write,
    block,
    comments_below,
    expression_writes,
    line_end,
    line_start,
)
from rewriter.edit import Edit, Found
from rewriter.elements import expression, insert_behind
from rewriter.snippet import Snippet, SnippetError, same
from rewriter.source import Node, Scope, SourceError
from rewriter.statements import statement_start


@dataclass(frozen=True)
class _OnDefinition(Edit):
    """An addition to the definition that the scope is; `make` gives None if it is there."""

    words: str
    text: str
    make: Callable[[Scope, Node], Change | None]
    count: int = 1
    is_code = False

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
    snippet = expression(decorator)

    def make(scope: Scope, node: Node) -> Change | None:
        definition: Any = node.node
        if any(same(snippet.expression, d.decorator, False) for d in definition.decorators):
            return None
        text = block(f"@{snippet.one_line}", scope.indent, scope.source.newline)
        return Change(scope.start, scope.start, (Write(scope.start, scope.start, text),))

    return _OnDefinition("decorator", decorator, make)


def add_base(base: str) -> Edit:
    """Add a last base class to the scope's class."""
    snippet = expression(base)

    def make(scope: Scope, node: Node) -> Change | None:
        definition = node.node
        if not isinstance(definition, cst.ClassDef):
            raise SourceError("a function, not a class")
        if any(same(snippet.expression, b.value, False) for b in definition.bases):
            return None
        text = snippet.put(None).encode()
        if not isinstance(definition.lpar, cst.LeftParen):
            point = scope.span(definition.type_parameters or definition.name)[1]
            frame = Frame(b"(", b", ", b")")
        elif definition.bases:
            point, frame = scope.span(definition.bases[-1])[1], Frame(b", ", b", ")
        else:
            point = scope.span(definition.lpar)[0] + 1
            frame = Frame(b"", b", ", b", " if definition.keywords else b"")
        return Change(point, point, (Write(point, point, text, frame),))

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
    stars = [star for star in (groups.star_arg, groups.star_kwarg) if isinstance(star, cst.Param)]
    return [*groups.posonly_params, *groups.params, *stars[:-1], *groups.kwonly_params, *stars[-1:]]


def _parameter_end(scope: Scope, parameter: cst.Param) -> int:
    annotation = parameter.annotation.annotation if parameter.annotation else None
    return scope.outer_span(parameter.default or annotation or parameter.name)[1]


def add_parameter(parameter: str, *, after: str) -> Edit:
    """Add a parameter ("name: type = default") behind the parameter `after` of the function."""
    new = _parse_parameter(parameter)

    def make(scope: Scope, node: Node) -> Change | None:
        given = _parameters(node.node)
        name = new.name.value
        named = [p for p in given if p.name.value == name]
        if named and _same_parameter(new, named[0]):
            return None
        if named:
            raise SourceError(f"a parameter `{name}` of another kind")
        behind = [p for p in given if p.name.value == after]
        if not behind:
            raise SourceError(f"no parameter `{after}`")
        following = given[given.index(behind[0]) + 1 :]
        if following and isinstance(behind[0].comma, cst.Comma):
            end = scope.span(following[0])[0]
            between = scope.source.data[_parameter_end(scope, behind[0]) : end]
            if between.strip().startswith(b",") and b"*" not in between and b"/" not in between:
                return insert_behind(
                    scope, behind[0], following[0], parameter, name, commutes=False
                )
        point = _parameter_end(scope, behind[0])
        return Change(point, point, (Write(point, point, f", {parameter}".encode()),), name=name)

    return _OnDefinition("parameter", parameter, make)


def set_parameter(parameter: str, *, was: str) -> Edit:
    """Give a parameter of the function another annotation or default than it has now (`was`)."""
    new, old = _parse_parameter(parameter), _parse_parameter(was)

    def make(scope: Scope, node: Node) -> Change | None:
        given = _parameters(node.node)
        if any(_same_parameter(new, p) for p in given):
            return None
        named = [p for p in given if p.name.value == old.name.value]
        if not named or not _same_parameter(old, named[0]):
            raise SourceError(f"no parameter `{was}`")
        start, end = scope.span(named[0].name)[0], _parameter_end(scope, named[0])
        return Change(start, end, expression_writes(scope.source.data, start, end, parameter))

    return _OnDefinition("parameter", parameter, make)


def _same_parameter(pattern: cst.Param, node: cst.Param) -> bool:
    parts = ("name", "annotation", "default")
    return all(same(getattr(pattern, part), getattr(node, part), False) for part in parts)


def add_member(code: str, *, after: str | None = None) -> Edit:
    """Add fields or methods to the scope's class, below the member `after` or at its end."""
    snippet = Snippet.parse(code)
    names = {name for statement in snippet.statements for name in _member_names(statement)}
    if not snippet.statements:
        raise SnippetError(f"a field or method is needed, not {code!r}")

    def make(scope: Scope, node: Node) -> Change | None:
        definition = node.node
        if not isinstance(definition, cst.ClassDef):
            raise SourceError("a function, not a class")
        body = definition.body.body
        if any(snippet.match_run(body, index, wild=False) for index in range(len(body))):
            return None
        if not isinstance(definition.body, cst.IndentedBlock):
            raise SourceError("a class on one line")
        taken = sorted(names.intersection(*[[n for s in body for n in _member_names(s)]]))
        if taken:
            raise SourceError(f"a member `{taken[0]}` that differs")
        members = [s for s in body if after in _member_names(s)] if after else [body[-1]]
        if not members:
            raise SourceError(f"no member `{after}`")
        data, newline = scope.source.data, scope.source.newline
        first = statement_start(scope, body[0])
        indent = data[line_start(data, first) : first]
        point = comments_below(data, line_end(data, scope.span(members[-1])[1]), indent)
        text = block(snippet.text, indent, newline)
        if not data[:point].endswith((b"\n", b"\r")):
            text = newline + text.removesuffix(newline)
        write = Write(point, point, text)
        return Change(point, point, (write,), commutes=True, name=", ".join(sorted(names)))

    return _OnDefinition("member", snippet.text, make)


def _member_names(statement: cst.CSTNode) -> list[str]:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return [statement.name.value]
    names: list[str] = []
    for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        targets = [t.target for t in part.targets] if isinstance(part, cst.Assign) else []
        targets += [part.target] if isinstance(part, cst.AnnAssign) else []
        names += [t.value for t in targets if isinstance(t, cst.Name)]
    return names
