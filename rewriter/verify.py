"""What the engine proves of its own result before it lets it out.

A transform is turned down if the file that it leaves does not compile or lacks a name, or if it
would edit its own result again; two that are right alone but not together are a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from rewriter.attempt import Read
from rewriter.imports import Import, present
from rewriter.layout import SYNTAX
from rewriter.outcome import Outcome, Problem
from rewriter.state import State, Variant


def verify(state: State) -> None:
    """Turn down (`state.turned`) the applied transforms whose result is not right."""
    order = state.applied
    edited = [(name, path) for name in order for path in state.plans[name].files]
    alone = {f"{n}:{p}": (p, state.editors(p, state.closure(n))) for n, p in edited}
    together = {f"all:{p}": (p, state.editors(p, order)) for _, p in edited}
    found = state.layout.faults(_contents(state, alone | together))
    # While ruff looks for faults, we look at the same files.
    read = state.reader(order)
    unknown = [name for name in order if _settled(state, name, read) is not None]
    _faults(state, edited, together, _new(found(), alone | together))
    if not state.turned:
        _recognized(state, unknown)


def _contents(state: State, variants: Mapping[str, Variant]) -> dict[str, bytes]:
    """Return states of files by key, and the pristine ones to compare them with."""
    contents = {key: state.state(*variant) for key, variant in variants.items()}
    return contents | {f":{path}": state.pristine.data(path) for path, _ in variants.values()}


def _new(found: Mapping[str, set[str]], variants: Mapping[str, Variant]) -> dict[str, list[str]]:
    """Return, by key, what is wrong in states of files and not in the pristine ones.

    Only a pristine file that does not parse is no excuse: nothing can be proved of it.
    """
    excused = {
        path: {fault for fault in found[f":{path}"] if not fault.startswith(SYNTAX)}
        for path, _ in variants.values()
    }
    return {key: sorted(found[key] - excused[path]) for key, (path, _) in variants.items()}


def _faults(
    state: State,
    edited: Sequence[tuple[str, str]],
    together: Mapping[str, Variant],
    found: Mapping[str, list[str]],
) -> None:
    for name, path in edited:
        before = state.editors(path, state.closure(name) - {name})
        inherited = {fault for other in before for fault in found[f"{other}:{path}"]}
        own = [fault for fault in found[f"{name}:{path}"] if fault not in inherited]
        if own:
            expected = "a file that compiles, all names defined"
            state.turn_down(name, Outcome.DRIFTED, Problem(path, "", "edit", expected, own[0]))
    if state.turned:
        return
    for key, (path, editors) in together.items():
        if found[key]:
            pairs = {
                f"{one} {two}": (path, state.editors(path, state.closure(one) | state.closure(two)))
                for one, two in combinations(sorted(editors), 2)
            }
            faults = _new(state.layout.faults(_contents(state, pairs))(), pairs)
            guilty = [pair for pair in pairs if faults[pair]] or list(pairs)
            for pair in guilty:
                one, two = pair.split(" ")
                state.clash(one, [two], path)


def _recognized(state: State, unknown: Sequence[str]) -> None:
    """Turn down those who do not find all their edits made in the result of all."""
    order = state.applied
    for name in unknown:
        closure = state.closure(name)
        again = _settled(state, name, state.reader(closure))
        if again is not None:
            path = next(iter(state.plans[name].files))
            problem = Problem(path, "", "edit", "an edit that knows itself when made", again)
            state.turn_down(name, Outcome.DRIFTED, problem)
            continue
        paths = state.plans[name].files
        rivals = {i: p for p in paths for i in state.editors(p, order) - closure}
        guilty = [
            rival
            for rival in sorted(rivals)
            if _settled(state, name, state.reader(closure | state.closure(rival))) is not None
        ]
        for rival in guilty or sorted(rivals):
            state.clash(name, [rival], rivals[rival])


def _settled(state: State, name: str, read: Read) -> str | None:
    """Return what a second attempt would do, but for imports that others want to stay."""
    again = state.attempt(name, read)
    if again.outcome is Outcome.ALREADY_UPSTREAM:
        return None
    for path, plan in again.files.items():
        source = read(path)
        here = present(source) if source else frozenset()
        wanted: set[Import] = set().union(
            *(state.plans[i].files[path].add for i in state.editors(path, state.applied))
        )
        if plan.edits or not plan.add <= here or not plan.drop & here <= wanted:
            return again.detail
    return None if again.outcome is Outcome.APPLIED else again.detail or str(again.outcome)
