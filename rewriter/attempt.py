"""Try one transform on a state of the tree: a plan of changes, or the problems in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rewriter.change import Change
from rewriter.edit import Edit, Target, contains
from rewriter.imports import Import, parse_imports, present
from rewriter.nearest import elsewhere, moved, nearest, same_name
from rewriter.outcome import Near, Outcome, Problem
from rewriter.snippet import Snippet
from rewriter.source import Scope, ScopeMissing, Source, SourceError
from rewriter.transform import Transform

Read = Callable[[str], Source | None]


@dataclass
class FilePlan:
    """What one transform does to one file."""

    changes: list[Change] = field(default_factory=list)
    add: set[Import] = field(default_factory=set)
    drop: set[Import] = field(default_factory=set)
    edits: int = 0  # how many places change, imports aside

    def clash(self, change: Change) -> Change | None:
        """One of the changes that cannot be made together with `change`."""
        for other in self.changes:
            both = change.commutes and other.commutes
            if change.overlaps(other) or (both and change.clashes(other)):
                return other
        return None

    def merge(self, other: FilePlan) -> None:
        """Take over what another target does to the file."""
        self.changes += other.changes
        self.add |= other.add
        self.drop |= other.drop
        self.edits += other.edits


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

    def _missing(self, target: Target, found: str, near: tuple[Near, ...]) -> None:
        self.missing = True
        source = self.read(target.path)
        for words, expected, edit in _wanted(target):
            fixed = edit is not None and source is not None and _in_file(source, edit)
            self.problems.append(
                Problem(target.path, target.scope, words, expected, found, near, fixed)
            )

    def target(self, target: Target) -> None:
        source = self.read(target.path)
        if source is None:
            name = target.scope.partition(".")[0]
            near = moved(self.root, name, target.path) if name else ()
            near = near or same_name(self.root, target.path)
            self._missing(target, "no such file", near)
            return
        try:
            scope = source.scope(target.scope)
        except ScopeMissing as error:
            self._missing(target, str(error), moved(self.root, error.part, target.path))
        except SourceError as error:
            self._unusable(target, str(error))
        else:
            self._edits(target, source, scope)

    def _edits(self, target: Target, source: Source, scope: Scope) -> None:
        plan = FilePlan()
        before = self.files.get(target.path, FilePlan())
        wrong: list[tuple[Edit, str]] = []
        already = 0
        for edit in target.edits:
            try:
                found = edit.locate(scope)
            except SourceError as error:
                wrong.append((edit, str(error)))
                continue
            lines = _lines(source, found.todo)
            if found.places == edit.count:
                clash = False
                for change in found.todo:
                    clash = clash or bool(plan.clash(change) or before.clash(change))
                    plan.changes.append(change)
                plan.edits += found.places
                if clash:
                    text = f"{_plural(found.places, 'match')}{lines}, over another of its edits"
                    wrong.append((edit, text))
            elif not found.places and found.done >= edit.count:
                already += 1
            else:
                text = _plural(found.places, "match") + lines
                if found.done:
                    text += f" and {found.done} edited already"
                wrong.append((edit, text))
        if wrong and self._fixed(target, scope):
            self.already += len(target.edits)
            return
        for edit, text in wrong:
            self._drift(target, source, scope, edit, text)
        self.already += already
        if wrong:
            return
        try:
            self._imports(target, source, plan)
        except SourceError as error:
            self._unusable(target, str(error))

    def _unusable(self, target: Target, found: str) -> None:
        """The file or the scope is there but cannot be edited."""
        for words, expected, _ in _wanted(target):
            self.problems.append(Problem(target.path, target.scope, words, expected, found))

    def _imports(self, target: Target, source: Source, plan: FilePlan) -> None:
        """Plan the target's imports; edits that are all there already may still lack one."""
        for statement in target.all_imports:
            plan.add.update(parse_imports(statement))
        for statement in target.dropped:
            plan.drop.update(parse_imports(statement))
        here = present(source)
        if plan.changes or not plan.add <= here or plan.drop & here:
            self.files.setdefault(target.path, FilePlan()).merge(plan)

    def _fixed(self, target: Target, scope: Scope) -> bool:
        if target.fixed_by is None:
            return False
        snippet = Snippet.parse(target.fixed_by)
        return contains(scope, snippet)

    def _drift(self, target: Target, source: Source, scope: Scope, edit: Edit, found: str) -> None:
        first, last = source.line_of(scope.start), source.line_of(scope.end - 1)
        same_code: tuple[Near, ...] = ()
        near: tuple[Near, ...] = ()
        if edit.pattern:
            same_code = elsewhere(target.path, source, Snippet.parse(edit.pattern))
            near = same_code or nearest(target.path, source, edit.pattern, first, last)
        fixed = edit.stands(scope) or (not same_code and _in_file(source, edit))
        expected = _plural(edit.count, "match")
        self.problems.append(
            Problem(target.path, target.scope, edit.describe(), expected, found, near, fixed)
        )


def _wanted(target: Target) -> list[tuple[str, str, Edit | None]]:
    """What a target wants, in words: the edit, and what it expects."""
    wanted: list[tuple[str, str, Edit | None]] = [
        (edit.describe(), _plural(edit.count, "match"), edit) for edit in target.edits
    ]
    if not wanted:
        words = [f"add `{statement}`" for statement in target.all_imports]
        words += [f"drop `{statement}`" for statement in target.dropped]
        wanted.append((", ".join(words), "a file to do it in", None))
    return wanted


def _in_file(source: Source, edit: Edit) -> bool:
    try:
        return edit.stands(source.scope(""))
    except SourceError:
        return False


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
    detail = f"{edits} edit{'s' * (edits != 1)}" if edits else "imports"
    detail += f" in {len(state.files)} file{'s' * (len(state.files) != 1)}"
    if state.already:
        detail += f"; {state.already} {'is' if state.already == 1 else 'are'} upstream already"
    return Plan(transform.id, Outcome.APPLIED, detail, state.files)
