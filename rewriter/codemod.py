"""The way out: an edit that is a libcst transformer of its own."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import libcst as cst

from rewriter.change import Change, Write
from rewriter.edit import Edit, Found
from rewriter.source import Scope, SourceError


@dataclass(frozen=True)
class Codemod(Edit):
    """An edit too odd for the primitives: a `libcst.CSTTransformer` of the transform's own.

    The class is instantiated for each scope, visits its module, and counts its edits in an
    attribute `edits` and places that are as they should be in `done`. The lines it changes are
    claimed.
    """

    transformer: type[cst.CSTTransformer]
    summary: str
    count: int = 1
    writes: str = ""

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
        transformer = self.transformer()
        module = scope.module.visit(transformer)
        edits = int(getattr(transformer, "edits", 0))
        after = module.bytes[len(scope.shell) :]
        changes = _line_changes(scope.source.data, scope.start, scope.end, after)
        if bool(edits) != bool(changes):
            raise SourceError(
                f"a codemod that counts {edits} edits and changes {len(changes)} places"
            )
        # One change carries all writes; the others stand for the places counted.
        claim = Change(changes[0].start, changes[-1].end, changes) if changes else None
        if claim is None:
            return Found((), int(getattr(transformer, "done", 0)))
        rest = tuple(Change(claim.end, claim.end, (), True) for _ in range(edits - 1))
        return Found((claim, *rest), 0)


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
