"""A Python source file as bytes, and the scopes in it that edits are confined to.

The scope (a definition, or one assignment) is found with `ast`; only its span is parsed by
libcst. It is several times faster than parsing whole files, and it makes "nothing else changed"
true by construction.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from rewriter.outline import Outline
from rewriter.snippet import walk

_BOM = b"\xef\xbb\xbf"
_NEWLINE = re.compile(rb"\r\n|\r|\n")
_IMPORT = re.compile(rb"(?m)^(?:import|from)\b")
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class SourceError(Exception):
    """The file or the scope cannot be used; the message is what was found instead."""


class ScopeMissing(SourceError):
    """There is no such scope in the file; `part` is the first piece of the name that is not."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


@dataclass(frozen=True, eq=False)
class Node:
    """A libcst node of a scope, the node above it, and where it lies in the file."""

    scope: Scope
    node: cst.CSTNode
    parent: cst.CSTNode | None

    @property
    def start(self) -> int:
        """The offset of its first byte, parentheses around it not included."""
        return self.scope.span(self.node)[0]

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.scope.span(self.node)[1]


class Scope:
    """One definition, one assignment, or a whole file, parsed by libcst.

    `start` and `end` are byte offsets of whole lines in the file.
    """

    def __init__(self, source: Source, name: str, start: int, end: int, indent: bytes) -> None:
        self.source, self.name, self.start, self.end, self.indent = source, name, start, end, indent
        # An indented scope parses only below something that may be indented.
        self.shell = b"if 1:" + source.newline if indent else b""
        try:
            # As text: libcst would look for an encoding in the first comment of bytes.
            self.module = cst.parse_module((self.shell + source.data[start:end]).decode())
        except (cst.ParserSyntaxError, ValueError, RecursionError) as error:
            reason = getattr(error, "message", str(error)).partition("\n")[0]
            raise SourceError(f"code that libcst cannot parse ({reason})") from None

    @property
    def root(self) -> cst.CSTNode:
        """The node that holds the scope's code: what an edit may look at."""
        return cst.ensure_type(self.module.body[0], cst.If).body if self.shell else self.module

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that means something, those above before those below."""
        return tuple(Node(self, node, parent) for node, parent in walk(self.root))

    @cached_property
    def _spans(self) -> Mapping[cst.CSTNode, CodeSpan]:
        # Asking the provider itself saves a visit of all nodes that MetadataWrapper makes for the
        # sake of other providers.
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        return cast(Mapping[cst.CSTNode, CodeSpan], ByteSpanPositionProvider()._gen(wrapper))

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the byte offsets of a node in the file."""
        span = self._spans[node]
        start = span.start + self.start - len(self.shell)
        return start, start + span.length

    def outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the byte offsets of a node with the parentheses around it."""
        start, end = self.span(node)
        left, right = getattr(node, "lpar", ()), getattr(node, "rpar", ())
        if isinstance(left, Sequence) and isinstance(right, Sequence) and left and right:
            return self.span(left[0])[0], self.span(right[-1])[1]
        return start, end

    @property
    def definition(self) -> Node:
        """The `def` or `class` that the scope is. Raises SourceError if it is something else."""
        if not self.name:
            raise SourceError("a whole file, not a definition")
        name = self.name.rpartition(".")[2]
        for found in self.nodes:
            node = found.node
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.name.value == name:
                return found
        raise SourceError("an assignment, not a definition")

    def place(self, node: cst.CSTNode) -> Node:
        """Return `node` of this scope with its place."""
        return Node(self, node, None)


class Source:
    """A file of the base. Raises SourceError if it is not UTF-8 or not Python."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._scopes: dict[str, Scope] = {}

    @cached_property
    def newline(self) -> bytes:
        """The line ending of the first line."""
        match = _NEWLINE.search(self.data)
        return match.group() if match else b"\n"

    @cached_property
    def start(self) -> int:
        """Where the text begins: behind a byte order mark."""
        return len(_BOM) if self.data.startswith(_BOM) else 0

    @cached_property
    def lines(self) -> tuple[int, ...]:
        """The offset at which each line begins, and the end of the file."""
        ends = [match.end() for match in _NEWLINE.finditer(self.data)]
        starts = [self.start, *ends]
        return (*starts, len(self.data)) if starts[-1] < len(self.data) else tuple(starts)

    @cached_property
    def text(self) -> str:
        """The file as text, without a byte order mark."""
        try:
            return self.data[self.start :].decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.line_of(self.start + error.start)
            raise SourceError(f"a file that is not UTF-8 (line {line})") from None

    @cached_property
    def tree(self) -> ast.Module:
        """The file as `ast` sees it."""
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            reason = f"{error.msg}, line {error.lineno}" if error.lineno else error.msg
            raise SourceError(f"a file that is not Python ({reason})") from None
        except (ValueError, RecursionError) as error:
            raise SourceError(f"a file that is not Python ({error})") from None

    @cached_property
    def head(self) -> list[ast.stmt]:
        """The statements at the top level, down to the last import or further."""
        last = max((m.start() for m in _IMPORT.finditer(self.data)), default=None)
        block = None if last is None else self.outline.block_at(last)
        found = None if block is None else _parsed(self.data[: block[1]])
        return self.tree.body if found is None else found

    @cached_property
    def outline(self) -> Outline:
        """Where the statements of the top level seem to be."""
        return Outline(self.data)

    def line_of(self, offset: int) -> int:
        """Return the 1-based line of a byte offset."""
        starts = len(self.lines)
        if self.data and not self.data.endswith((b"\n", b"\r")):
            starts -= 1
        return max(1, bisect_right(self.lines, offset, hi=starts))

    def scope(self, name: str) -> Scope:
        """Return the scope `name` ("" is the whole file). Raises ScopeMissing, SourceError."""
        if name not in self._scopes:
            self._scopes[name] = self._find(name)
        return self._scopes[name]

    def _find(self, name: str) -> Scope:
        if not name:
            return Scope(self, name, self.start, len(self.data), b"")
        try:
            return self._below(name, *self._block(name))
        except SourceError:
            # The whole file knows better, or says what is wrong.
            return self._below(name, self.tree.body, 0)

    def _block(self, name: str) -> tuple[list[ast.stmt], int]:
        """Parse just the statement that defines the first part of `name`; give its line too."""
        block = self.outline.block_of(name.partition(".")[0].encode()) if self.text else None
        body = None if block is None else _parsed(self.data[block[0] : block[1]])
        if block is None or body is None:
            return self.tree.body, 0
        return body, self.line_of(block[0]) - 1

    def _below(self, name: str, nodes: list[ast.stmt], shift: int) -> Scope:
        found: list[ast.stmt] = []
        for part in name.split("."):
            found = [node for node in _flat(nodes) if part in _names(node)]
            if not found:
                text = f"no `{part}`" + (f" of `{name}`" if part != name else "")
                raise ScopeMissing(part, text)
            if len(found) > 1:
                where = ", ".join(str(node.lineno + shift) for node in found)
                raise SourceError(f"{len(found)} definitions of `{part}`, on lines {where}")
            nodes = getattr(found[0], "body", [])
        node = found[0]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = node.end_lineno or node.lineno
        start, end = self.lines[first + shift - 1], self.lines[last + shift]
        return Scope(self, name, start, end, _indent(self.data[start:end]))


def _parsed(code: bytes) -> list[ast.stmt] | None:
    try:
        return ast.parse(code.decode()).body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _indent(code: bytes) -> bytes:
    """The white space before a line; a form feed sets the column back to nought."""
    space = code[: len(code) - len(code.lstrip(b" \t\f"))]
    return space.rpartition(b"\f")[2]


def _flat(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those below `if`, `try` and `with`, but not below definitions."""
    for node in nodes:
        yield node
        if not isinstance(node, _Definition):
            for field in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _flat(handler.body)


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, _Definition):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()
