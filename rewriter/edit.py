"""What an edit is, and where it is made: a scope of a file.

Every edit looks at the pristine file, so that the order of edits does not matter, and states how
many places it expects; more or fewer is an error, never a guess.
"""

from __future__ import annotations

import io
import re
import tokenize
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from typing import ClassVar

import libcst as cst

from rewriter.change import Change
from rewriter.imports import parse_imports
from rewriter.snippet import Snippet, SnippetError
from rewriter.source import Scope, SourceError


@dataclass(frozen=True)
class Found:
    """The places of an edit that are still to be changed, and how many are as they should be.

    `counted` is the number of places if it is not that of the changes.
    """

    todo: tuple[Change, ...] = ()
    done: int = 0
    counted: int | None = None

    @property
    def places(self) -> int:
        """How many places are still to be changed."""
        return len(self.todo) if self.counted is None else self.counted


class Edit(ABC):
    """One kind of change, confined to a scope."""

    #: How many places it must find.
    count: int = 1
    #: Whether `result` is a statement or an expression by itself (an argument is neither).
    is_code: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the count of every kind of edit; the edits are dataclasses."""
        if type(self.count) is not int or self.count < 1:
            raise SnippetError(f"count must be a whole number from 1 on, not {self.count!r}")

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what the edit does."""

    @abstractmethod
    def locate(self, scope: Scope) -> Found:
        """Find the places in the scope. Raises SourceError if the scope is of the wrong kind."""

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The code that the edit looks for (for the report of a drifted edit)."""

    @property
    def result(self) -> str:
        """The code that the edit leaves behind."""
        return ""

    def stands(self, scope: Scope) -> bool:
        """Whether the scope seems to hold the result already (for the report of a failed edit)."""
        try:
            if self.locate(scope).done:
                return True
            if not self.is_code:
                return False
            result = Snippet.parse(self.result)
        except (SourceError, SnippetError):
            return False
        return bool(result.text) and contains(scope, result, wild=False)


def contains(scope: Scope, snippet: Snippet, *, wild: bool = True) -> bool:
    """Whether an expression, or a run of statements, stands somewhere in the scope."""
    for found in scope.nodes:
        node = found.node
        if snippet.match(node, wild=wild):
            return True
        if len(snippet.statements) > 1 and isinstance(node, (cst.IndentedBlock, cst.Module)):
            body = node.body
            if any(snippet.match_run(body, index, wild=wild) for index in range(len(body))):
                return True
    return False


def _code(text: str) -> str:
    """The tokens of a snippet, but for strings and comments, with a space between two."""
    tokens = tokenize.generate_tokens(io.StringIO(dedent(text)).readline)
    return " ".join(t.string for t in tokens if t.type not in (tokenize.STRING, tokenize.COMMENT))


@dataclass(frozen=True)
class Target:
    """Edits of one scope of one file. Built by `In(path, scope).do(...)`.

    `imports` and `dropped` are import statements that the file must have and must lose; `fixed_by`
    is code that shows, where the edits do not fit, that upstream has its own fix.
    """

    path: str
    scope: str
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    fixed_by: str | None = None

    def mentions(self, word: str) -> bool:
        """Whether the edits write this name into vLLM."""
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        written = [edit.result for edit in self.edits]
        return any(pattern.search(text) for text in [*self.imports, *written])

    @cached_property
    def all_imports(self) -> tuple[str, ...]:
        """The imports asked for, and one for each module of `ascend_runtime` that is written."""
        written = "\n".join(_code(edit.result) for edit in self.edits)
        modules = re.findall(r"\bascend_runtime \. (\w+)", written)
        return tuple(
            dict.fromkeys([*self.imports, *(f"import ascend_runtime.{m}" for m in modules)])
        )


@dataclass(frozen=True)
class In:
    """A scope: a path below the base, and a dotted name ("" is the whole file).

    The name is of a function, a class, a method, or a name that is assigned to.
    """

    path: str
    scope: str = ""

    def __post_init__(self) -> None:
        for text in (self.path, self.scope):
            if not isinstance(text, str):
                raise SnippetError(f"In(...) takes the path of a file and a name, not {text!r}")

    def do(
        self,
        *edits: Edit,
        imports: str | Sequence[str] = (),
        drops: str | Sequence[str] = (),
        fixed_by: str | None = None,
    ) -> Target:
        """Confine edits to this scope. Raises SnippetError for code that is not Python."""
        if not edits and not imports and not drops:
            raise SnippetError(f"{self.path}: nothing to do")
        for edit in edits:
            if not isinstance(edit, Edit):
                raise SnippetError(f"{self.path}: {edit!r} is not an edit")
        if fixed_by is not None:
            Snippet.parse(fixed_by)
        for statement in (*_as_tuple(imports), *_as_tuple(drops)):
            parse_imports(statement)
        return Target(self.path, self.scope, edits, _as_tuple(imports), _as_tuple(drops), fixed_by)


def _as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
