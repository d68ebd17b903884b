"""A piece of Python as a pattern: parsed once, compared by structure and not by white space.

`...` is the wildcard. As an argument of a call it stands for any arguments (those before it match
from the left, those behind it from the right), as the body of a block for any body, anywhere else
for any one expression. Keyword arguments match in any order. In code that an edit writes `...` is
itself.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
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
#: Names that are no expressions, though libcst has the same node for them.
_NAMES = {
    cst.Attribute: "attr",
    cst.Arg: "keyword",
    cst.Param: "name",
    cst.FunctionDef: "name",
    cst.ClassDef: "name",
    cst.Import: "names",
    cst.ImportFrom: "names module",
    cst.Global: "names",
    cst.Nonlocal: "names",
    cst.MatchKeywordElement: "key",
}
_MULTI = (cst.Tuple, cst.Yield, cst.NamedExpr)
_CONNECTIVE = (cst.BinaryOperation, cst.BooleanOperation, cst.UnaryOperation, cst.Comparison)
_TERNARY = (cst.IfExp, cst.Lambda)
_LOOSE = (*_MULTI, *_CONNECTIVE, *_TERNARY, cst.Await)
#: Where nothing that has an operator may stand.
_TIGHT = (
    *_CONNECTIVE,
    cst.Await,
    cst.Attribute,
    cst.Call,
    cst.ComparisonTarget,
    cst.StarredElement,
    cst.StarredDictElement,
    cst.Subscript,
)
_CONDITIONS = (cst.IfExp, cst.CompFor, cst.CompIf, cst.FormattedStringExpression)


class SnippetError(ValueError):
    """A snippet in a transform is not Python; the message quotes it."""


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = [f.name for f in dataclasses.fields(kind) if not f.name.startswith("whitespace")]
    # `f"{x=}"` prints more than `f"{x}"` does.
    kept = ("equal",) if kind is cst.FormattedStringExpression else ()
    return tuple(name for name in names if name not in _LAYOUT or name in kept)


@cache
def _code_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields below which code lies, last first."""
    names = _NAMES.get(kind, "").split()
    return tuple(name for name in reversed(_fields(kind)) if name not in names)


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


def _same_arg(pattern: cst.Arg, node: cst.Arg, wild: bool) -> bool:
    return pattern.star == node.star and same(pattern.value, node.value, wild)


def _same_run(pattern: Sequence[cst.Arg], node: Sequence[cst.Arg], wild: bool) -> bool:
    """Whether positional arguments match; a wildcard takes any number of them."""
    for index, arg in enumerate(pattern):
        if wild and not arg.star and _is_any(arg.value):
            rest = pattern[index + 1 :]
            return any(_same_run(rest, node[i:], wild) for i in range(index, len(node) + 1))
        if index >= len(node) or not _same_arg(arg, node[index], wild):
            return False
    return len(pattern) == len(node)


def _same_call(pattern: cst.Call, node: cst.Call, wild: bool) -> bool:
    if not same(pattern.func, node.func, wild):
        return False
    named = {a.keyword.value: a for a in node.args if a.keyword is not None}
    wanted = [a for a in pattern.args if a.keyword is not None]
    for arg in wanted:
        other = named.get(arg.keyword.value) if arg.keyword is not None else None
        if other is None or not _same_arg(arg, other, wild):
            return False
    ordered = [a for a in pattern.args if a.keyword is None]
    open_ended = wild and any(not a.star and _is_any(a.value) for a in ordered)
    if not open_ended and len(wanted) != len(named):
        return False
    return _same_run(ordered, [a for a in node.args if a.keyword is None], wild)


def _same_string(pattern: cst.SimpleString, node: cst.SimpleString) -> bool:
    return pattern.value == node.value or pattern.evaluated_value == node.evaluated_value


def _same_text(pattern: cst.Expr, node: cst.Expr) -> bool:
    """Whether two docstrings are the same but for their indentation."""
    texts = [
        inspect.cleandoc(statement.value.evaluated_value)
        for statement in (pattern, node)
        if isinstance(statement.value, cst.SimpleString)
        and isinstance(statement.value.evaluated_value, str)
    ]
    return len(texts) == 2 and texts[0] == texts[1]


def same(pattern: Any, node: Any, wild: bool = True) -> bool:
    """Whether `node` (a libcst node, a sequence of them, or a plain value) matches `pattern`.

    `wild=False` takes `...` for itself.
    """
    if wild and _is_any(pattern) and isinstance(node, cst.BaseExpression):
        return True
    if wild and isinstance(node, cst.BaseSuite) and _is_any_body(pattern):
        return True
    kind: Any = type(pattern)
    if kind in (list, tuple):
        if type(node) not in (list, tuple) or len(pattern) != len(node):
            return False
        return all(same(p, n, wild) for p, n in zip(pattern, node, strict=True))
    if isinstance(pattern, cst.BaseSuite) and isinstance(node, cst.BaseSuite):
        return same(_suite(pattern), _suite(node), wild)
    if kind is not type(node):
        return False
    if kind is cst.SimpleString:
        return _same_string(pattern, node)
    if kind is cst.Call:
        return _same_call(pattern, node, wild)
    if kind is cst.Expr and _same_text(pattern, node):
        return True
    if kind is cst.FormattedString and _is_raw(pattern) != _is_raw(node):
        return False
    if isinstance(pattern, cst.CSTNode):
        return all(
            same(getattr(pattern, name), getattr(node, name), wild)
            for name in _fields(type(pattern))
        )
    return bool(pattern == node)


def _suite(body: cst.BaseSuite) -> list[cst.CSTNode]:
    """The statements of a body, alike for `if x: y` on one line and on two."""
    found: list[cst.CSTNode] = []
    for node in body.body:
        found += node.body if isinstance(node, cst.SimpleStatementLine) else [node]
    return found


def _is_raw(string: cst.FormattedString) -> bool:
    return "r" in string.prefix


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
        if not isinstance(source, str):
            raise SnippetError(f"code is needed, as a string, not {source!r}")
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
        if self.expression is not None and "\n" not in self.text:
            return cst.Module([]).code_for_node(self.expression)  # without a comment behind it
        if any(sign in self.text for sign in ("#", '"""', "'''", "\\\n")):
            try:
                return ast.unparse(ast.parse(f"({self.text}\n)", mode="eval"))
            except SyntaxError:
                return self.text
        return " ".join(line.strip() for line in self.text.splitlines())

    def put(self, parent: cst.CSTNode | None, there: cst.CSTNode | None = None) -> str:
        """The expression on one line, in parentheses if it needs them below `parent`.

        `there` is what it replaces, whose own parentheses stay.
        """
        text, new = self.one_line, self.expression
        kept = bool(getattr(there, "lpar", ()))
        if new is None:
            return text
        if new.lpar:
            return text[1:-1].strip() if kept else text
        # A comma that needed no parentheses before needs none now.
        alike = isinstance(new, cst.Tuple) and isinstance(there, cst.Tuple)
        if kept or alike or _continues(new, parent, there):
            return text
        return f"({text})" if _parenthesized(new, parent) else text

    def match(self, node: cst.CSTNode, *, wild: bool = True) -> bool:
        """Whether one node is this expression, or else this one statement."""
        if self.expression is not None:
            kind = type(self.expression)
            if kind is not type(node) and kind is not cst.Ellipsis:
                return False  # most nodes, and quickly
            return isinstance(node, cst.BaseExpression) and same(self.expression, node, wild)
        if len(self.statements) == 1 and isinstance(node, cst.BaseStatement):
            return same(self.statements[0], node, wild)
        return False

    def match_run(self, body: Sequence[cst.CSTNode], start: int, *, wild: bool = True) -> bool:
        """Whether the statements of `body` from `start` on are these statements."""
        size = len(self.statements)
        if start < 0 or start + size > len(body) or not size:
            return False
        return all(same(s, n, wild) for s, n in zip(self.statements, body[start:], strict=False))


def walk(root: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode | None]]:
    """Yield every node that means something, with its parent.

    Layout is passed over, and so are names that are no expressions: attributes, keywords, imports.
    """
    stack: list[tuple[Any, cst.CSTNode | None]] = [(root, None)]
    while stack:
        node, parent = stack.pop()
        if isinstance(node, cst.CSTNode):
            yield node, parent
            stack.extend([(getattr(node, name), node) for name in _code_fields(type(node))])
        elif isinstance(node, (list, tuple)):
            stack.extend([(item, parent) for item in reversed(node)])


def _continues(new: cst.CSTNode, parent: cst.CSTNode | None, there: cst.CSTNode | None) -> bool:
    """Whether an or-chain takes the place of the first operands of a longer one."""
    return (
        isinstance(new, cst.BooleanOperation)
        and isinstance(parent, cst.BooleanOperation)
        and type(new.operator) is type(parent.operator)
        and parent.left is there
    )


def _parenthesized(new: cst.BaseExpression, parent: cst.CSTNode | None) -> bool:
    """Whether an expression below `parent` would bind wrongly without parentheses."""
    if isinstance(new, _MULTI):
        return isinstance(new, cst.NamedExpr) or not isinstance(parent, cst.Expr)
    if isinstance(new, _TERNARY) and isinstance(parent, _CONDITIONS):
        return True
    if isinstance(new, cst.Integer) and isinstance(parent, cst.Attribute):
        return True
    return isinstance(new, _LOOSE) and isinstance(parent, _TIGHT)
