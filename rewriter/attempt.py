"""Try one transform on a state of the tree: a plan of changes, or the problems in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rewriter.change import Change
from rewriter.edit import Edit, Target
from rewriter.imports import Import, parse_imports, present
from rewriter.nearest import elsewhere, moved, nearest, same_name
from rewriter.outcome import Near, Outcome, Problem
from rewriter.snippet import Snippet, SnippetError
from rewriter.source import Scope, ScopeMissing, Source, SourceError
from rewriter.transform import Transform

Read = Callable[[str], Source | None]


@dataclass
class FilePlan:
    """What one transform does to one file."""

    changes: list[Change] = field(default_factory=list)
    add: set[Import] = field(default_factory=set)
    drop: set[Import] = field(default_factory=set)

    @property
    def edits(self) -> int:
        """How many places change, imports aside."""
        return len(self.changes)


@dataclass
class Plan:
    """What one transform does to the tree, or why it cannot."""

    id: str
    outcome: Outcome
    detail: str = ""
    files: dict[str, FilePlan] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es"


def _lines(source: Source, changes: tuple[Change, ...]) -> str:
    numbers = [str(source.line_of(change.start)) for change in changes]
    return f" on line{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}" if numbers else ""


class _Attempt:
    def __init__(self, read: Read, root: Path) -> None:
        self.read, self.root = read, root
        self.problems: list[Problem] = []
        self.missing = False
        self.files: dict[str, FilePlan] = {}
        self.already = 0

    def _missing(self, target: Target, found: str, near: tuple[Near, ...], scope: str = "") -> None:
        self.missing = True
        for edit in target.edits:
            self.problems.append(
                Problem(
                    target.path, scope, edit.describe(), _plural(edit.count, "match"), found, near
                )
            )

    def target(self, target: Target) -> None:
        source = self.read(target.path)
        if source is None:
            self._missing(target, "no such file", same_name(self.root, target.path), target.scope)
            return
        try:
            scope = source.scope(target.scope)
        except ScopeMissing as error:
            self._missing(target, str(error), moved(self.root, target.scope), target.scope)
            return
        except SourceError as error:
            self._drift(target, source, None, target.edits[0], str(error))
            return
        self._edits(target, source, scope)

    def _edits(self, target: Target, source: Source, scope: Scope) -> None:
        plan = FilePlan()
        wrong: list[tuple[Edit, str]] = []
        already = 0
        for edit in target.edits:
            try:
                found = edit.locate(scope)
            except SourceError as error:
                wrong.append((edit, str(error)))
                continue
            if len(found.todo) == edit.count:
                plan.changes += found.todo
            elif not found.todo and found.done >= edit.count:
                already += 1
            else:
                text = _plural(len(found.todo), "match") + _lines(source, found.todo)
                if found.done and found.todo:
                    text += f" and {found.done} that are so already"
                wrong.append((edit, text))
        if wrong and self._fixed(target, scope):
            self.already += len(target.edits)
            return
        for edit, text in wrong:
            self._drift(target, source, scope, edit, text)
        self.already += already
        if plan.changes:
            self._imports(target, plan)
            merged = self.files.setdefault(target.path, FilePlan())
            merged.changes += plan.changes
            merged.add |= plan.add
            merged.drop |= plan.drop
        elif not wrong:
            self._imports_left(target, source)

    def _imports(self, target: Target, plan: FilePlan) -> None:
        for statement in target.all_imports:
            plan.add.update(parse_imports(statement))
        for statement in target.dropped:
            plan.drop.update(parse_imports(statement))

    def _imports_left(self, target: Target, source: Source) -> None:
        """Edits that are all there already may still lack an import (or be only imports)."""
        plan = FilePlan()
        self._imports(target, plan)
        here = present(source)
        if not plan.add <= here or plan.drop & here:
            merged = self.files.setdefault(target.path, FilePlan())
            merged.add |= plan.add
            merged.drop |= plan.drop

    def _fixed(self, target: Target, scope: Scope) -> bool:
        if target.fixed_by is None:
            return False
        snippet = Snippet.parse(target.fixed_by)
        return any(snippet.match(node.node) for node in scope.nodes)

    def _drift(
        self, target: Target, source: Source, scope: Scope | None, edit: Edit, found: str
    ) -> None:
        near: tuple[Near, ...] = ()
        fixed = False
        if scope is not None:
            first, last = source.line_of(scope.start), source.line_of(scope.end)
            if edit.pattern:
                near = elsewhere(target.path, source, Snippet.parse(edit.pattern))
                near = near or nearest(target.path, source, edit.pattern, first, last)
            fixed = self._stands(source, edit)
        expected = _plural(edit.count, "match")
        self.problems.append(
            Problem(target.path, target.scope, edit.describe(), expected, found, near, fixed)
        )

    def _stands(self, source: Source, edit: Edit) -> bool:
        try:
            result = Snippet.parse(edit.result)
        except SnippetError:
            return False
        return bool(edit.result and elsewhere("", source, result))


def attempt(transform: Transform, read: Read, root: Path, version: str) -> Plan:
    """Try `transform` on the tree that `read` gives (None for a missing file)."""
    if not transform.applies_to(version):
        return Plan(transform.id, Outcome.NOT_APPLICABLE, f"declared for vLLM {transform.vllm}")
    state = _Attempt(read, root)
    for target in transform.edits:
        state.target(target)
    if state.problems:
        outcome = Outcome.TARGET_MISSING if state.missing else Outcome.DRIFTED
        detail = state.problems[0].describe()
        return Plan(transform.id, outcome, detail, problems=tuple(state.problems))
    if not state.files:
        return Plan(transform.id, Outcome.ALREADY_UPSTREAM, "the base holds every edit already")
    edits = sum(plan.edits for plan in state.files.values())
    detail = f"{edits} edit{'s' * (edits != 1)} in {len(state.files)} file"
    detail += "s" * (len(state.files) != 1)
    if state.already:
        detail += f"; {state.already} are upstream already"
    return Plan(transform.id, Outcome.APPLIED, detail, state.files)
