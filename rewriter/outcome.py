"""What became of each transform: plain data, shared by the report, the wheels and the patches."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Outcome(enum.StrEnum):
    """The result of one transform on one base."""

    APPLIED = "applied"
    ALREADY_UPSTREAM = "already-upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"
    TARGET_MISSING = "target-missing"
    CONFLICT = "conflict"

    @property
    def failed(self) -> bool:
        """Whether this outcome stops the build."""
        return self in (Outcome.DRIFTED, Outcome.TARGET_MISSING, Outcome.CONFLICT)


@dataclass(frozen=True)
class Near:
    """Code like what an edit was looking for: a path in the base, a 1-based line, the code."""

    path: str
    line: int
    code: str


@dataclass(frozen=True)
class Problem:
    """Why one edit could not be made."""

    path: str
    scope: str
    edit: str  # the edit in words: "replace `a << b`"
    expected: str  # "1 match"
    found: str  # "0 matches", "no such file", "3 matches on lines 4, 9, 12"
    nearest: tuple[Near, ...] = ()
    looks_fixed: bool = False  # the base seems to hold the result already

    def describe(self) -> str:
        """Return the problem as one readable line."""
        place = f"{self.path}: {self.scope}" if self.scope else self.path
        text = f"{place}: {self.edit}: expected {self.expected}, found {self.found}"
        if self.looks_fixed:
            text += "; the base looks fixed already"
        for near in self.nearest:
            text += f"; nearest is {near.path}:{near.line}: {near.code}"
        return " ".join(text.split())  # code may stand on several lines


@dataclass(frozen=True)
class FileChange:
    """What one transform alone does to one file of the pristine base."""

    path: str  # "vllm/..." with forward slashes
    edits: int
    added: int
    removed: int


@dataclass(frozen=True)
class Result:
    """One transform's outcome. `detail` is one line; `problems` is empty unless it failed."""

    id: str
    outcome: Outcome
    detail: str = ""
    files: tuple[FileChange, ...] = ()
    problems: tuple[Problem, ...] = field(default=())
