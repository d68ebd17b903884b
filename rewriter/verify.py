"""What the engine proves of its own result before it lets it out.

A transform is turned down if the file that it leaves does not compile or lacks a name, or if it
would edit its own result again; two that are right alone but not together are a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from rewriter.attempt import Read
from rewriter.imports import Import, present
from rewriter.outcome import Outcome, Problem
from rewriter.state import State, Variant


def verify(state: State) -> None:
    """Turn down (`state.turned`) the applied transforms whose result is not right."""
    _faults(state)
    if not state.turned:
        _recognized(state)


def _new_faults(state: State, variants: Mapping[str, Variant]) -> dict[str, list[str]]:
    """Return, by key, what is wrong in states of files and not in the pristine ones."""
    keyed = {key: state.state(*variant) for key, variant in variants.items()}
    keyed |= {f":{path}": state.pristine.data(path) for path, _ in variants.values()}
    found = state.layout.faults(keyed)
    return {key: sorted(found[key] - found[f":{path}"]) for key, (path, _) in variants.items()}


def _faults(state: State) -> None:
    order = state.applied
    edited = [(name, path) for name in order for path in state.plans[name].files]
    alone = {f"{n}:{p}": (p, state.editors(p, state.closure(n))) for n, p in edited}
    together = {f"all:{p}": (p, state.editors(p, order)) for _, p in edited}
    found = _new_faults(state, alone | together)
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
            guilty = [k for k, faults in _new_faults(state, pairs).items() if faults] or list(pairs)
            for pair in guilty:
                one, two = pair.split(" ")
                state.clash(one, [two], path)


def _recognized(state: State) -> None:
    """Every transform must find all its edits made in the result of all."""
    order = state.applied
    read = state.reader(order)
    for name in order:
        if _settled(state, name, read) is None:
            continue
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
