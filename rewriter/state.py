"""The states of a tree: what each transform plans to do, and files after any set of transforms.

Every transform is tried on the pristine base (or, where it declares `after`, on what the
generations before it leave), and the changes of all are spliced together. So the order in which
transforms are given cannot matter, and two that touch the same code are found by that code and not
by the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from pathlib import Path

from rewriter.attempt import FilePlan, Plan, Read, attempt
from rewriter.base import Base
from rewriter.catalog import generations
from rewriter.change import splice
from rewriter.imports import Import, import_writes
from rewriter.layout import Layout
from rewriter.outcome import Outcome, Problem
from rewriter.source import Source
from rewriter.transform import Transform

#: A state of one file: the path, and the transforms that have edited it.
Variant = tuple[str, frozenset[str]]


class Pristine:
    """Reads the files of a base, each once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sources: dict[str, Source | None] = {}

    def __call__(self, path: str) -> Source | None:
        """Return a file, or None if the base has none of that name."""
        if path not in self._sources:
            file = self.root / path
            self._sources[path] = Source(file.read_bytes()) if file.is_file() else None
        return self._sources[path]

    def data(self, path: str) -> bytes:
        """Return the bytes of a file that is there."""
        source = self(path)
        assert source is not None, path
        return source.data


class State:
    """One try at making all transforms but those turned down before.

    `turned` collects what is found out too late to plan around: whoever sees it filled starts
    afresh without those transforms.
    """

    def __init__(
        self,
        base: Base,
        transforms: Sequence[Transform],
        pristine: Pristine,
        layout: Layout,
        failed: dict[str, Plan],
    ) -> None:
        self.base, self.pristine, self.layout, self.failed = base, pristine, layout, failed
        self.transforms = {t.id: t for t in sorted(transforms, key=lambda t: t.id)}
        self.depth = generations(list(self.transforms.values()))
        self.plans: dict[str, Plan] = {}
        self.states: dict[Variant, bytes] = {}
        self.turned: dict[str, Plan] = {}

    @property
    def applied(self) -> list[str]:
        """The applied transforms in patch order."""
        ids = [i for i, plan in self.plans.items() if plan.outcome is Outcome.APPLIED]
        return sorted(ids, key=lambda i: (self.depth[i], i))

    def editors(self, path: str, ids: Iterable[str]) -> frozenset[str]:
        """Those of `ids` that edit the file."""
        return frozenset(i for i in ids if path in self.plans[i].files)

    def state(self, path: str, ids: Iterable[str]) -> bytes:
        """The file after these transforms."""
        key = (path, self.editors(path, ids))
        if not key[1]:
            return self.pristine.data(path)
        if key not in self.states:
            self.render([key])
        return self.states[key]

    def closure(self, name: str) -> frozenset[str]:
        """A transform with the applied ones that are declared to come before it."""
        applied = set(self.applied)
        before = [b for b in self.transforms[name].after if b in applied]
        return frozenset({name}).union(*(self.closure(b) for b in before))

    def reader(self, ids: Iterable[str]) -> Read:
        """Read the tree after these transforms."""
        ids = list(ids)
        sources: dict[str, Source] = {}

        def read(path: str) -> Source | None:
            if not self.editors(path, ids):
                return self.pristine(path)
            if path not in sources:
                sources[path] = Source(self.state(path, ids))
            return sources[path]

        return read

    def attempt(self, name: str, read: Read) -> Plan:
        """Try a transform on the tree that `read` gives."""
        return self._attempt(self.transforms[name], read)

    def _attempt(self, transform: Transform, read: Read) -> Plan:
        return attempt(transform, read, self.base.root, self.base.version)

    def plan_generation(self, level: int) -> None:
        """Try all transforms of one generation on the state below it."""
        below = self.applied
        read = self.reader(below)
        ids = [i for i in self.transforms if self.depth[i] == level]
        plans = {i: self.failed.get(i) or self._attempt(self.transforms[i], read) for i in ids}
        self.plans |= plans
        for name in ids:
            self._undeclared(name, below)
            self._explain(name)
        applied = [plan for plan in plans.values() if plan.outcome is Outcome.APPLIED]
        self._conflicts(applied, read)

    def _explain(self, name: str) -> None:
        """Say of a failed transform which of those before it are not there."""
        plan = self.plans[name]
        gone = [
            f"{b}, which is {self.plans[b].outcome if b in self.plans else 'not selected'}"
            for b in self.transforms[name].after
            if b not in self.plans or self.plans[b].outcome.failed
        ]
        if plan.outcome.failed and gone and name not in self.failed:
            words = f" (it comes after {' and '.join(gone)})"
            plan.problems = tuple(replace(p, found=p.found + words) for p in plan.problems)
            plan.detail = plan.problems[0].describe()

    def _undeclared(self, name: str, below: Sequence[str]) -> None:
        """Find earlier transforms that change what this one finds, though it does not name them."""
        plan = self.plans[name]
        known = self.closure(name) - {name}
        paths = sorted({t.path for t in self.transforms[name].edits})
        rivals = {i: p for p in paths for i in self.editors(p, below) - known}
        if not rivals or name in self.failed or plan.outcome is Outcome.NOT_APPLICABLE:
            return
        alone = self.attempt(name, self.reader(known))
        if alone.outcome is not plan.outcome or _edits(alone) != _edits(plan):
            self.clash(name, sorted(rivals), next(iter(rivals.values())))
            return
        for rival, path in sorted(rivals.items()):
            # Their places can be compared where both look at the pristine file.
            if not self.depth[rival] and path in alone.files and not self.editors(path, known):
                theirs = self.plans[rival].files[path].changes
                for change in alone.files[path].changes:
                    if any(change.clashes(other) for other in theirs):
                        line = Source(self.pristine.data(path)).line_of(change.start)
                        self.clash(name, [rival], path, line)
                        break

    def clash(self, name: str, rivals: Sequence[str], path: str, line: int = 0) -> None:
        """Turn a transform and its rivals down, to start afresh without them."""
        for rival in rivals:
            # With the order declared, what comes later has edited the other's result away.
            declared = name in self.closure(rival) or rival in self.closure(name)
            for one, two in ((name, rival), (rival, name)):
                self.turn_down(one, Outcome.CONFLICT, conflict(path, line, two, declared))

    def turn_down(self, name: str, outcome: Outcome, problem: Problem) -> None:
        """Give up a transform that was planned."""
        before = self.turned[name].problems if name in self.turned else ()
        problems = tuple(dict.fromkeys((*before, problem)))
        self.turned[name] = Plan(name, outcome, problems[0].describe(), problems=problems)

    def _conflicts(self, plans: Sequence[Plan], read: Read) -> None:
        problems: dict[str, list[Problem]] = {}
        for one, two in combinations(plans, 2):
            for path in sorted(one.files.keys() & two.files.keys()):
                source = read(path)
                for change in one.files[path].changes:
                    for other in two.files[path].changes:
                        if source and change.clashes(other):
                            for plan, rival, at in ((one, two, change), (two, one, other)):
                                problem = conflict(path, source.line_of(at.start), rival.id)
                                problems.setdefault(plan.id, []).append(problem)
        for plan in plans:
            if plan.id in problems:
                plan.outcome = Outcome.CONFLICT
                plan.problems = tuple(dict.fromkeys(problems[plan.id]))
                plan.detail = plan.problems[0].describe()
                plan.files = {}

    def render(self, wanted: Iterable[Variant]) -> None:
        """Make states of files, those that later generations build on first."""
        missing = {self._cut(v, level) for v in wanted for level in set(self.depth.values())}
        todo = sorted(
            (v for v in missing if v[1] and v not in self.states),
            key=lambda v: (max(self.depth[i] for i in v[1]), v[0], sorted(v[1])),
        )
        for level, variants in groupby(todo, key=lambda v: max(self.depth[i] for i in v[1])):
            self._render_level(level, list(variants))

    def _cut(self, variant: Variant, level: int) -> Variant:
        return variant[0], frozenset(i for i in variant[1] if self.depth[i] <= level)

    def _render_level(self, level: int, variants: Sequence[Variant]) -> None:
        batch: list[tuple[str, bytes, bytes]] = []
        for path, ids in variants:
            top = sorted(i for i in ids if self.depth[i] == level)
            source = self.reader(i for i in ids if self.depth[i] < level)(path)
            assert source is not None, path
            plans = [self._file_plan(i, path, source) for i in top]
            batch.append((path, source.data, _join(source, plans)))
        for key, data in zip(variants, self.layout.run(batch), strict=True):
            self.states[key] = data

    def _file_plan(self, name: str, path: str, source: Source) -> FilePlan:
        """What a transform does to the file as it is before."""
        if not self.depth[name]:
            return self.plans[name].files[path]
        here = [target for target in self.transforms[name].edits if target.path == path]
        plan = self._attempt(replace(self.transforms[name], edits=here), lambda _: source)
        return plan.files.get(path, FilePlan())

    def variants(self) -> list[Variant]:
        """Every state of a file that the outputs need."""
        found: list[Variant] = []
        order = self.applied
        for index, name in enumerate(order):
            for path in self.plans[name].files:
                found.append((path, self.editors(path, self.closure(name))))
                found.append((path, self.editors(path, order[: index + 1])))
        return found


def conflict(path: str, line: int, rival: str, declared: bool = False) -> Problem:
    """Return the problem of a transform that edits the same code as `rival`."""
    found = f"{rival} editing the same code; name one in the other's `after`, or join them"
    if declared:
        found = f"{rival} editing the same code, so that the first cannot be recognized; join them"
    edit = f"edit line {line}" if line else "edit"
    return Problem(path, "", edit, "code that no other transform edits", found)


def _edits(plan: Plan) -> dict[str, int]:
    return {path: file.edits for path, file in plan.files.items()}


def _join(source: Source, plans: Sequence[FilePlan]) -> bytes:
    add: set[Import] = set().union(*(plan.add for plan in plans))
    drop: set[Import] = set().union(*(plan.drop for plan in plans))
    writes = [write for plan in plans for change in plan.changes for write in change.writes]
    inserted = [w for w in writes if w.start == w.end]
    # Two transforms may ask for the very same insertion; it is made once.
    unique = list(dict.fromkeys(inserted)) + [w for w in writes if w.start != w.end]
    # Imports first: what stands at the very start of a file may be decorated.
    return splice(source.data, [*import_writes(source, add, drop), *unique])
