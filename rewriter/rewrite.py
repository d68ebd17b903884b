"""Base and transforms in, edited files and one outcome per transform out.

Every transform is tried on the pristine base (or, where it declares `after`, on what its
predecessors leave), and the changes of all are spliced together. So the order in which transforms
are given cannot matter, and two that touch the same code are found by that code and not by the
file.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path

from rewriter.attempt import FilePlan, Plan, attempt
from rewriter.base import Base
from rewriter.catalog import generations
from rewriter.change import splice
from rewriter.diffs import count
from rewriter.imports import Import, import_writes
from rewriter.layout import Layout
from rewriter.outcome import FileChange, Outcome, Problem, Result
from rewriter.source import Source
from rewriter.transform import Transform

#: A state of one file: the path, and the transforms that have edited it.
Variant = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class Rewritten:
    """What a rewrite gave. Paths are "vllm/..." with forward slashes; only edited files are listed.

    `results` are sorted by transform id. `files` is the whole edit; `alone[id]` is what each
    applied transform does to the pristine base by itself (after its declared prerequisites);
    `series` is the applied transforms in patch order, each with the files it touches as they are
    after it.
    """

    results: tuple[Result, ...]
    files: Mapping[str, bytes]
    alone: Mapping[str, Mapping[str, bytes]]
    series: tuple[tuple[str, Mapping[str, bytes]], ...]


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


class _Rewrite:
    def __init__(self, base: Base, transforms: Sequence[Transform], work: Path) -> None:
        self.base = base
        self.transforms = {t.id: t for t in sorted(transforms, key=lambda t: t.id)}
        self.pristine = Pristine(base.root)
        self.layout = Layout(base.root, work)
        self.depth = generations(list(self.transforms.values()))
        self.plans: dict[str, Plan] = {}
        self.states: dict[Variant, bytes] = {}

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
        return self.states[key] if key[1] else self.pristine.data(path)

    def closure(self, name: str) -> frozenset[str]:
        """A transform with the applied ones that are declared to come before it."""
        before = [b for b in self.transforms[name].after if b in self.applied]
        return frozenset({name}).union(*(self.closure(b) for b in before))

    def plan_generation(self, level: int) -> None:
        """Try all transforms of one generation on the state below it."""
        below = self.applied
        read = self.pristine if not below else self._reader(below)
        ids = [i for i in self.transforms if self.depth[i] == level]
        for name in ids:
            transform = self.transforms[name]
            self.plans[name] = attempt(transform, read, self.base.root, self.base.version)
        self._conflicts([self.plans[i] for i in ids if self.plans[i].outcome is Outcome.APPLIED])

    def _reader(self, ids: Sequence[str]) -> Callable[[str], Source | None]:
        sources: dict[str, Source] = {}

        def read(path: str) -> Source | None:
            if not self.editors(path, ids):
                return self.pristine(path)
            if path not in sources:
                sources[path] = Source(self.state(path, ids))
            return sources[path]

        return read

    def _conflicts(self, plans: Sequence[Plan]) -> None:
        problems: dict[str, list[Problem]] = {}
        for one, two in combinations(plans, 2):
            for path in sorted(one.files.keys() & two.files.keys()):
                for change in one.files[path].changes:
                    for other in two.files[path].changes:
                        if change.clashes(other):
                            for plan, rival in ((one, two), (two, one)):
                                problem = self._conflict(path, change.start, plan.id, rival.id)
                                problems.setdefault(plan.id, []).append(problem)
        for plan in plans:
            if plan.id in problems:
                plan.outcome = Outcome.CONFLICT
                plan.problems = tuple(dict.fromkeys(problems[plan.id]))
                plan.detail = plan.problems[0].describe()
                plan.files = {}

    def _conflict(self, path: str, offset: int, name: str, rival: str) -> Problem:
        source = self.pristine(path)
        line = source.line_of(offset) if source else 0
        return Problem(
            path,
            "",
            f"edit line {line}",
            "code that no other transform edits",
            f"{rival} editing the same code; name one in the other's `after`, or join them",
        )

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
            before = self.state(path, [i for i in ids if self.depth[i] < level])
            plans = [self._file_plan(i, path, before) for i in top]
            batch.append((path, before, _join(Source(before), plans)))
        for key, data in zip(variants, self.layout.run(batch), strict=True):
            self.states[key] = data

    def _file_plan(self, name: str, path: str, before: bytes) -> FilePlan:
        if before == self.pristine.data(path) and not self.depth[name]:
            return self.plans[name].files[path]
        source = Source(before)
        read = lambda other: source if other == path else self.pristine(other)  # noqa: E731
        plan = attempt(self.transforms[name], read, self.base.root, self.base.version)
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

    def check(self) -> None:
        """Turn transforms down whose edits break a file or would be made a second time."""
        alone = {
            (i, path): self.state(path, self.closure(i))
            for i in self.applied
            for path in self.plans[i].files
        }
        keyed = {f"{i}:{path}": data for (i, path), data in alone.items()}
        keyed |= {f":{path}": self.pristine.data(path) for _, path in alone}
        faults = self.layout.faults(keyed)
        for name, path in alone:
            found = sorted(faults[f"{name}:{path}"] - faults[f":{path}"])
            if found:
                self._turn_down(name, path, "a file that compiles, all names defined", found[0])
        order = self.applied
        read = self._reader(order)
        for name in order:
            again = attempt(self.transforms[name], read, self.base.root, self.base.version)
            if again.outcome is not Outcome.ALREADY_UPSTREAM:
                path = next(iter(self.plans[name].files))
                found_again = again.detail or again.outcome
                self._turn_down(name, path, "an edit that knows itself when made", found_again)

    def _turn_down(self, name: str, path: str, expected: str, found: str) -> None:
        plan = self.plans[name]
        problem = Problem(path, "", "edit", expected, found)
        plan.problems = (*plan.problems, problem)
        plan.outcome, plan.detail = Outcome.DRIFTED, plan.problems[0].describe()


def _join(source: Source, plans: Sequence[FilePlan]) -> bytes:
    add: set[Import] = set().union(*(plan.add for plan in plans))
    drop: set[Import] = set().union(*(plan.drop for plan in plans))
    writes = [write for plan in plans for change in plan.changes for write in change.writes]
    inserted = [w for w in writes if w.start == w.end]
    # Two transforms may ask for the very same insertion; it is made once.
    unique = list(dict.fromkeys(inserted)) + [w for w in writes if w.start != w.end]
    return splice(source.data, [*unique, *import_writes(source, add, drop)])


def _result(state: _Rewrite, plan: Plan) -> Result:
    files = []
    for path, file_plan in sorted(plan.files.items()):
        if plan.outcome is not Outcome.APPLIED:
            break
        closure = state.closure(plan.id)
        before = state.state(path, closure - {plan.id})
        added, removed = count(before, state.state(path, closure))
        files.append(FileChange(path, file_plan.edits, added, removed))
    return Result(plan.id, plan.outcome, plan.detail, tuple(files), plan.problems)


@contextmanager
def _without_gc() -> Iterator[None]:
    """The trees hold no cycles worth looking for, and there are millions of nodes to look at."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rewrite(base: Base, transforms: Sequence[Transform], work: Path) -> Rewritten:
    """Rewrite a base. `work` is a scratch folder. Raises RewriterError if ruff does not run."""
    with _without_gc():
        state = _Rewrite(base, transforms, work)
        for level in range(max(state.depth.values(), default=-1) + 1):
            state.plan_generation(level)
            state.render(state.variants())
        state.check()
        state.render(state.variants())
        return _collect(state)


def _collect(state: _Rewrite) -> Rewritten:
    order = state.applied
    touched = sorted({path for i in order for path in state.plans[i].files})
    alone = {i: {p: state.state(p, state.closure(i)) for p in state.plans[i].files} for i in order}
    series = tuple(
        (i, {p: state.state(p, order[: n + 1]) for p in sorted(state.plans[i].files)})
        for n, i in enumerate(order)
    )
    results = [_result(state, state.plans[i]) for i in state.transforms]
    files = {path: state.state(path, order) for path in touched}
    return Rewritten(tuple(results), files, alone, series)
