"""A piece of Python as a pattern: parsed once, compared by structure and not by white space.

`...` is the wildcard. As an argument of a call it stands for any arguments, as the body of a
block for any body, anywhere else for any one expression. Keyword arguments match in any order.
"""

from __future__ import annotations

import ast
import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import libcst as cst

#: Fields of libcst nodes that say how code is laid out, not what it means.
_LAYOUT = frozenset(
    """
    lpar rpar comma semicolon equal dot colon lbrace rbrace lbracket rbracket header footer indent
    leading_lines lines_after_decorators lines_after_module_docstring trailing_whitespace encoding
    default_indent default_newline has_trailing_newline newlines start end
    """.split()  # noqa: SIM905
)
_CONNECTIVE = (cst.BinaryOperation, cst.BooleanOperation, cst.UnaryOperation, cst.Comparison)
_LOOSE = (*_CONNECTIVE, cst.IfExp, cst.Lambda, cst.NamedExpr, cst.Await, cst.Yield)


class SnippetError(ValueError):
    """A snippet in a transform is not Python; the message quotes it."""


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in _LAYOUT and not f.name.startswith("whitespace")
    )


def _is_any(node: object) -> bool:
    return isinstance(node, cst.Ellipsis)


def _is_any_body(node: object) -> bool:
    if isinstance(node, cst.IndentedBlock) and len(node.body) == 1:
        node = node.body[0]
    if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
        return (
            len(node.body) == 1
            and isinstance(node.body[0], cst.Expr)
            and _is_any(node.body[0].value)
        )
    return False


def _same_call(pattern: cst.Call, node: cst.Call) -> bool:
    if not same(pattern.func, node.func):
        return False
    wanted = [a for a in pattern.args if not (a.keyword is None and _is_any(a.value))]
    open_ended = len(wanted) != len(pattern.args)
    ordered = [a for a in node.args if a.keyword is None]
    named = {a.keyword.value: a for a in node.args if a.keyword is not None}
    used = 0
    for arg in wanted:
        if arg.keyword is not None:
            other = named.get(arg.keyword.value)
        else:
            other = ordered[used] if used < len(ordered) else None
            used += 1
        if other is None or arg.star != other.star or not same(arg.value, other.value):
            return False
    return open_ended or len(wanted) == len(node.args)


def same(pattern: Any, node: Any) -> bool:
    """Whether `node` (a libcst node, a sequence of them, or a plain value) matches `pattern`."""
    if _is_any(pattern) and isinstance(node, cst.BaseExpression):
        return True
    if _is_any_body(pattern) and isinstance(node, cst.BaseSuite):
        return True
    if isinstance(pattern, (list, tuple)):
        return (
            isinstance(node, (list, tuple))
            and len(pattern) == len(node)
            and all(map(same, pattern, node))
        )
    if isinstance(pattern, cst.SimpleString) and isinstance(node, cst.SimpleString):
        return pattern.evaluated_value == node.evaluated_value
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, cst.Call):
        return _same_call(pattern, node)
    if isinstance(pattern, cst.CSTNode):
        return all(
            same(getattr(pattern, name), getattr(node, name)) for name in _fields(type(pattern))
        )
    return bool(pattern == node)


def _parse_expression(text: str) -> cst.BaseExpression | None:
    try:
        # An expression that spans lines parses only inside parentheses.
        parsed = cst.parse_expression(f"({text}\n)" if "\n" in text else text)
    except cst.ParserSyntaxError:
        return None
    if "\n" in text and hasattr(parsed, "lpar"):
        return parsed.with_changes(lpar=parsed.lpar[1:], rpar=parsed.rpar[:-1])
    return parsed


@dataclasses.dataclass(frozen=True)
class Snippet:
    """One expression, or one or more statements, out of a transform."""

    text: str
    expression: cst.BaseExpression | None
    statements: tuple[cst.BaseStatement, ...]

    @classmethod
    def parse(cls, source: str) -> Snippet:
        """Parse `source`; an expression is preferred. Raises SnippetError."""
        text = textwrap.dedent(source).strip("\n").rstrip()
        expression = _parse_expression(text.strip())
        try:
            statements = tuple(cst.parse_module(text + "\n").body)
        except cst.ParserSyntaxError as error:
            if expression is None:
                raise SnippetError(f"not Python: {source!r} ({error.message})") from None
            statements = ()
        return cls(text.strip() if expression is not None else text, expression, statements)

    @property
    def one_line(self) -> str:
        """The expression on one line, as it can stand in the middle of other code."""
        if "\n" not in self.text:
            return self.text
        if "#" in self.text or '"""' in self.text:
            return ast.unparse(ast.parse(f"({self.text}\n)", mode="eval"))
        return " ".join(line.strip() for line in self.text.splitlines())

    @property
    def loose(self) -> bool:
        """Whether the expression needs parentheses inside another operator."""
        return isinstance(self.expression, _LOOSE) and not self.expression.lpar

    def match(self, node: cst.CSTNode) -> bool:
        """Whether one node is this expression, or this one statement."""
        if self.expression is not None and isinstance(node, cst.BaseExpression):
            return same(self.expression, node)
        if len(self.statements) == 1 and isinstance(node, cst.BaseStatement):
            return same(self.statements[0], node)
        return False

    def match_run(self, body: Sequence[cst.CSTNode], start: int) -> bool:
        """Whether the statements of `body` from `start` on are these statements."""
        run = list(body[start : start + len(self.statements)]) if start >= 0 else []
        return same(list(self.statements), run)


def walk(root: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode | None]]:
    """Yield every node that means something, with its parent; layout nodes are passed over."""
    stack: list[tuple[Any, cst.CSTNode | None]] = [(root, None)]
    while stack:
        node, parent = stack.pop()
        if isinstance(node, cst.CSTNode):
            yield node, parent
            stack.extend((getattr(node, name), node) for name in reversed(_fields(type(node))))
        elif isinstance(node, (list, tuple)):
            stack.extend((item, parent) for item in reversed(node))


def needs_parentheses(parent: cst.CSTNode | None) -> bool:
    """Whether a loose expression below `parent` would bind wrongly without parentheses."""
    return isinstance(
        parent,
        (*_LOOSE, cst.Attribute, cst.ComparisonTarget, cst.StarredElement, cst.Subscript),
    )
