"""The way out: an edit that is a libcst transformer of its own."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from difflib import SequenceMatcher

import libcst as cst

from rewriter.change import Change, Write
from rewriter.edit import Edit, Found
from rewriter.snippet import SnippetError
from rewriter.source import Scope, SourceError


@dataclass(frozen=True)
class Codemod(Edit):
    """An edit too odd for the primitives: a `libcst.CSTTransformer` of the transform's own.

    The class is instantiated for each scope, visits its code (a module, or the block around an
    indented definition), and counts its edits in an attribute `edits` and places that are as they
    should be in `done`. The lines it changes are claimed.
    """

    transformer: type[cst.CSTTransformer]
    summary: str
    count: int = 1
    writes: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.transformer
        if not isinstance(kind, type) or not issubclass(kind, cst.CSTTransformer):
            raise SnippetError(f"Codemod takes a class of libcst.CSTTransformer, not {kind!r}")
        for text in (self.summary, self.writes):
            if not isinstance(text, str):
                raise SnippetError(f"Codemod takes its summary and code as strings, not {text!r}")

    def describe(self) -> str:
        """Say in a few words what the edit does."""
        return self.summary

    @property
    def pattern(self) -> str:
        """Nothing to search for."""
        return ""

    @property
    def result(self) -> str:
        """The code that it writes, for the imports to be found."""
        return self.writes

    def locate(self, scope: Scope) -> Found:
        """Run the codemod on the scope."""
        if scope.module.code.encode() != scope.shell + scope.source.data[scope.start : scope.end]:
            raise SourceError("code that libcst does not give back as it was")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for our results
                after, edits, done = self._run(scope)
        except SourceError:
            raise
        except (Exception, SystemExit) as error:  # the code is the user's
            reason = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
            raise SourceError(f"a codemod that fails with {reason}") from None
        writes = _line_changes(scope.source.data, scope.start, scope.end, after)
        if bool(edits) != bool(writes):
            raise SourceError(
                f"a codemod that counts {edits} edits and changes {len(writes)} places"
            )
        return Found(tuple(Change(w.start, w.end, (w,)) for w in writes), done, edits)

    def _run(self, scope: Scope) -> tuple[bytes, int, int]:
        transformer = self.transformer()
        block = scope.root.visit(transformer)
        if not isinstance(block, cst.CSTNode):
            raise SourceError("a codemod that removes its scope")
        module = scope.module.deep_replace(scope.root, block) if scope.shell else block
        after = cst.ensure_type(module, cst.Module).code.encode()[len(scope.shell) :]
        edits, done = getattr(transformer, "edits", 0), getattr(transformer, "done", 0)
        return after, int(edits), int(done)


def _line_changes(data: bytes, start: int, end: int, after: bytes) -> tuple[Write, ...]:
    old = data[start:end].splitlines(keepends=True)
    new = after.splitlines(keepends=True)
    offsets = [start]
    for line in old:
        offsets.append(offsets[-1] + len(line))
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        Write(offsets[i1], offsets[i2], b"".join(new[j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    )
