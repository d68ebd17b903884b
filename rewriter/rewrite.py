"""Base and transforms in, edited files and one outcome per transform out.

All transforms are tried before anything is reported, and what comes out has been proved
(`rewriter.verify`): a transform that is turned down leaves no trace in the results of the others.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rewriter.attempt import Plan
from rewriter.base import Base
from rewriter.diffs import count
from rewriter.layout import Layout
from rewriter.outcome import FileChange, Outcome, Result
from rewriter.state import Pristine, State
from rewriter.transform import Transform
from rewriter.verify import verify

__all__ = ["Pristine", "Rewritten", "rewrite"]


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


def _result(state: State, plan: Plan) -> Result:
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
    pristine, layout = Pristine(base.root), Layout(base.root, work)
    failed: dict[str, Plan] = {}
    with _without_gc():
        while True:
            state = State(base, transforms, pristine, layout, failed)
            for level in range(max(state.depth.values(), default=-1) + 1):
                state.plan_generation(level)
                if state.turned:
                    break
                state.render(state.variants())
            else:
                verify(state)
            if not state.turned:
                return _collect(state)
            # What was turned down may have been built upon: the others are planned without it.
            failed |= state.turned


def _collect(state: State) -> Rewritten:
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
