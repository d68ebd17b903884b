"""What changed between two reports: the work list of a vLLM bump."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rewriter.errors import RewriterError
from rewriter.outcome import Outcome

_SCHEMA = 1
#: What a problem says it found where a file or a definition is missing, and nothing else.
_LOST = re.compile(r"no such file\Z|no `[^`]+`( of `[^`]+`)?\Z")


@dataclass(frozen=True)
class OutcomeChange:
    """One transform that ended otherwise than before. `note` says what that means."""

    id: str
    old: str
    new: str
    note: str


@dataclass(frozen=True)
class FileDifference:
    """One file that one transform edits otherwise; (added, removed), None where it does not."""

    id: str
    path: str
    old: tuple[int, int] | None
    new: tuple[int, int] | None


@dataclass(frozen=True)
class Comparison:
    """What changed from an old report to a new one; each part is sorted by transform.

    `base` has the fields of the base that differ: name, version, sha256, origin, file or commit,
    each with its old and new value. `project` is the two versions of the project, if they differ.
    """

    base: Mapping[str, tuple[str | None, str | None]]
    project: tuple[str, str] | None
    added: tuple[tuple[str, str], ...]  # id and outcome
    removed: tuple[tuple[str, str], ...]
    outcomes: tuple[OutcomeChange, ...]
    files: tuple[FileDifference, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.base or self.project or self.added or self.removed or self.outcomes or self.files
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "schema": _SCHEMA,
            "same": self.same,
            "base": {name: {"old": old, "new": new} for name, (old, new) in self.base.items()},
            "project_version": (
                {"old": self.project[0], "new": self.project[1]} if self.project else None
            ),
            "added": [{"id": id, "outcome": outcome} for id, outcome in self.added],
            "removed": [{"id": id, "outcome": outcome} for id, outcome in self.removed],
            "outcomes": [asdict(change) for change in self.outcomes],
            "files": [
                {
                    "id": file.id,
                    "path": file.path,
                    "old": _counts_entry(file.old),
                    "new": _counts_entry(file.new),
                }
                for file in self.files
            ],
        }

    def text(self) -> str:
        """Return the comparison for people, a line for each difference."""
        if self.same:
            return "Nothing changed.\n"
        lines = [
            f"base {name}: {old or '-'} -> {new or '-'}" for name, (old, new) in self.base.items()
        ]
        if self.project:
            lines.append("project version: {} -> {}".format(*self.project))
        lines += _section("Outcomes that changed", [_outcome_line(item) for item in self.outcomes])
        lines += _section("New transforms", [f"{id}: {outcome}" for id, outcome in self.added])
        lines += _section("Gone transforms", [f"{id} (was {was})" for id, was in self.removed])
        lines += _section("Edits that changed", [_file_line(file) for file in self.files])
        return "\n".join(lines).lstrip("\n") + "\n"


def load(path: Path) -> dict[str, Any]:
    """Read a `report.json`; raises RewriterError where it cannot be read or is no report."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RewriterError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RewriterError(f"{path} is not JSON: {_line(error)}") from error
    check(report, str(path))
    return dict(report)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Compare two reports; raises RewriterError where one is malformed or of another schema."""
    check(old, "the old report")
    check(new, "the new report")
    before = {entry["id"]: entry for entry in old["transforms"]}
    after = {entry["id"]: entry for entry in new["transforms"]}
    common = sorted(before.keys() & after.keys())
    fields = ("name", "version", "sha256", "origin", "file", "commit")
    versions = (old["project_version"], new["project_version"])
    return Comparison(
        base={
            field: (old["base"].get(field), new["base"].get(field))
            for field in fields
            if old["base"].get(field) != new["base"].get(field)
        },
        project=versions if versions[0] != versions[1] else None,
        added=tuple((id, after[id]["outcome"]) for id in sorted(after.keys() - before.keys())),
        removed=tuple((id, before[id]["outcome"]) for id in sorted(before.keys() - after.keys())),
        outcomes=tuple(
            OutcomeChange(id, was, now, _note(was, now, _problems(after[id])))
            for id in common
            if (was := before[id]["outcome"]) != (now := after[id]["outcome"])
        ),
        files=tuple(item for id in common for item in _files(id, before[id], after[id])),
    )


def check(report: object, name: str) -> None:
    """Raise RewriterError, which names the report `name`, unless it is one of our schema."""

    def need(holds: object, what: str) -> None:
        if not holds:
            raise RewriterError(f"{name} is not a report of this program: {what}")

    if not isinstance(report, Mapping):
        raise RewriterError(f"{name} is not a report of this program: it is no JSON object")
    need("schema" in report, "it has no schema")
    if report["schema"] != _SCHEMA or isinstance(report["schema"], bool):
        raise RewriterError(
            f"{name} has schema {_line(repr(report['schema']))}, this version reads {_SCHEMA}:"
            " make the report again with this version"
        )
    base = report.get("base")
    need(isinstance(base, Mapping), "it has no base")
    assert isinstance(base, Mapping)
    need(all(isinstance(base.get(key), str) for key in ("version", "sha256")), "its base is broken")
    need(isinstance(report.get("project_version"), str), "it has no project_version")
    entries = report.get("transforms")
    need(isinstance(entries, list), "it has no list of transforms")
    assert isinstance(entries, list)
    seen = set()
    for number, entry in enumerate(entries, start=1):
        need(_is_entry(entry), f"its transform {number} is broken")
        need(entry["id"] not in seen, f"its transform {number} is there twice")
        seen.add(entry["id"])


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        return False
    if entry.get("outcome") not in list(Outcome) or not isinstance(entry.get("files"), list):
        return False
    return all(
        isinstance(file, Mapping)
        and isinstance(file.get("path"), str)
        and all(isinstance(file.get(key), int) for key in ("added", "removed"))
        for file in entry["files"]
    )


def _problems(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    problems = entry.get("problems")
    return [p for p in problems if isinstance(p, Mapping)] if isinstance(problems, list) else []


def _note(old: str, new: str, problems: list[Mapping[str, Any]]) -> str:
    if new == Outcome.ALREADY_UPSTREAM:
        return "upstream has it: the transform can be dropped for this base"
    if new == Outcome.NOT_APPLICABLE:
        return "not meant for this version"
    if new == Outcome.APPLIED:
        return "works again" if Outcome(old).failed else "is needed here"
    if problems and all(problem.get("looks_fixed") is True for problem in problems):
        return "the base looks fixed already: see whether the transform can be dropped"
    if new == Outcome.TARGET_MISSING and (where := _whereabouts(problems)):
        return where
    if Outcome(old).failed:
        return "still fails, for another reason"
    return {
        Outcome.DRIFTED: "the code looks different: adapt the transform",
        Outcome.TARGET_MISSING: "the code is gone: adapt or drop the transform",
        Outcome.CONFLICT: "clashes with another transform: declare an order",
    }[Outcome(new)]


def _whereabouts(problems: list[Mapping[str, Any]]) -> str:
    """Say where the code that is missing seems to be now; nothing if no problem tells."""
    lost = [problem for problem in problems if _LOST.match(str(problem.get("found")))]
    found = [place for problem in lost if (place := _first_place(problem))]
    if not found:
        return ""
    first, *others = dict.fromkeys(found)
    places = first + (f" and {len(others)} more place{'s' * (len(others) != 1)}" if others else "")
    if len(found) < len(lost):
        return f"some code is gone, the rest seems to have moved to {places}: adapt the transform"
    return f"it seems to have moved to {places}: adapt the transform"


def _first_place(problem: Mapping[str, Any]) -> str:
    nearest = problem.get("nearest")
    near = nearest[0] if isinstance(nearest, list) and nearest else None
    if not isinstance(near, Mapping) or not isinstance(near.get("path"), str):
        return ""
    return f"{near['path']}:{near.get('line')}"


def _files(id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[FileDifference]:
    before, after = (
        {file["path"]: (file["added"], file["removed"]) for file in entry["files"]}
        for entry in (old, new)
    )
    return [
        FileDifference(id, path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _section(title: str, items: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {item}" for item in items)] if items else []


def _outcome_line(change: OutcomeChange) -> str:
    return f"{change.id}: {change.old} -> {change.new} ({change.note})"


def _file_line(file: FileDifference) -> str:
    place = f"{file.id}: {file.path}"
    if file.old is None:
        return f"{place}: now edited, {_counts(file.new)}"
    if file.new is None:
        return f"{place}: no longer edited (was {_counts(file.old)})"
    return f"{place}: {_counts(file.old)} -> {_counts(file.new)}"


def _counts(pair: tuple[int, int] | None) -> str:
    return "+{} -{}".format(*pair) if pair else "-"


def _counts_entry(pair: tuple[int, int] | None) -> dict[str, int] | None:
    return {"added": pair[0], "removed": pair[1]} if pair else None


def _line(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:79] + "…"
