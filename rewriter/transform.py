"""A transform: the metadata, the edits and the examples of one change to vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from packaging.specifiers import InvalidSpecifier, SpecifierSet

if TYPE_CHECKING:
    from rewriter.edits import Target

#: Tags that vLLM puts before the subject of a pull request.
SUBJECT_TAGS = ("Bugfix", "Core", "Distributed", "Feature", "Hardware", "Misc", "Model", "Platform")
#: The words of Upstream-Status.
STATUSES = ("Pending", "Submitted", "Backport", "Denied", "Inappropriate")
#: The one file of vLLM that the wheel does not take from the base but makes.
GENERATED = "vllm/_version.py"
_ID = re.compile(r"[a-z][a-z0-9_]*\Z")
_SEED = re.compile(r"(platform|worker)/\d{1,2}[a-z]?\Z")


class TransformError(Exception):
    """A transform's own definition is wrong; the message names it and the field."""


@dataclass(frozen=True)
class Upstream:
    """Where the change stands upstream, in the words of Yocto's Upstream-Status.

    `status` is Pending, Submitted, Backport, Denied or Inappropriate; `detail` is a reason, a pull
    request or a release.
    """

    status: str
    detail: str = ""

    @classmethod
    def pending(cls, detail: str = "") -> Upstream:
        """Fit for a pull request that nobody has opened yet."""
        return cls("Pending", detail)

    @classmethod
    def submitted(cls, where: str) -> Upstream:
        """A pull request is open."""
        return cls("Submitted", where)

    @classmethod
    def backport(cls, where: str) -> Upstream:
        """Upstream has it in a later release; `where` names the pull request and the release."""
        return cls("Backport", where)

    @classmethod
    def denied(cls, where: str) -> Upstream:
        """Upstream refused it."""
        return cls("Denied", where)

    @classmethod
    def inappropriate(cls, reason: str) -> Upstream:
        """Not for upstream, for the reason given."""
        return cls("Inappropriate", reason)

    @property
    def stands_alone(self) -> bool:
        """Whether the edit must work in a vLLM without `ascend_runtime`."""
        return self.status in ("Pending", "Submitted", "Backport")

    def __str__(self) -> str:
        """Return the value as Upstream-Status writes it."""
        return f"{self.status} [{self.detail}]" if self.detail else self.status


@runtime_checkable
class _Target(Protocol):
    """What every target has; the class itself knows libcst, which takes long to import."""

    @property
    def path(self) -> str: ...

    def mentions(self, word: str) -> bool: ...


def _short(value: object) -> str:
    return repr(value).partition("\n")[0][:80]


@dataclass(frozen=True)
class Example:
    """A file before and after. `after=None`: the transform must refuse to touch `before`.

    `path` is the path of one of the transform's targets; an example runs only the targets there.
    """

    path: str
    before: str
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Transform:
    """One change to vLLM, as declared in a file of `rewriter/transforms/`.

    `seed` names the rows of the monkey-patch table that it covers ("platform/3"), in full or in
    part; `vllm` is the version specifier of the releases it is meant for; `after` lists transforms
    whose edits come first where both touch the same code; `monkey_patch_lines` is the size of the
    file it replaces, alone or with others of the same seed rows (0 if it is not known).
    `id`, `doc`, `source` and `source_lines` (its code, without docstring and examples) are filled
    in by the catalogue.
    """

    seed: str | Sequence[str]
    tag: str
    vllm: str
    upstream: Upstream
    remove_when: str
    edits: Sequence[Target]
    examples: Sequence[Example] = ()
    after: Sequence[str] = ()
    monkey_patch_lines: int = 0
    id: str = ""
    doc: str = ""
    source: Path | None = field(default=None, compare=False)
    source_lines: int = 0

    @property
    def seeds(self) -> tuple[str, ...]:
        """The seed rows as a tuple."""
        return (self.seed,) if isinstance(self.seed, str) else tuple(self.seed)

    @property
    def title(self) -> str:
        """The first line of the docstring, without its full stop."""
        return self.doc.partition("\n")[0].rstrip(".")

    @property
    def body(self) -> str:
        """The docstring after its first line."""
        return self.doc.partition("\n")[2].strip("\n")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it edits, sorted, each once."""
        return tuple(sorted({target.path for target in self.edits}))

    def applies_to(self, version: str) -> bool:
        """Whether the transform is declared for this vLLM version."""
        return SpecifierSet(self.vllm).contains(version, prereleases=True)

    def bound(self, *, id: str, doc: str, source: Path, source_lines: int) -> Transform:
        """Return a copy that knows its own name and file, after checking every field."""
        self._validate(id, doc)
        return replace(self, id=id, doc=doc, source=source, source_lines=source_lines)

    def _validate_types(self, need: Callable[[object, str], None]) -> None:
        kinds: dict[str, tuple[type, str]] = {"seed": (str, "a string"), "after": (str, "a string")}
        kinds |= {"edits": (_Target, "In(...).do(...)"), "examples": (Example, "Example(...)")}
        for name, (kind, words) in kinds.items():
            value = getattr(self, name)
            if name == "seed" and isinstance(value, str):
                continue
            if not isinstance(value, (list, tuple)):
                need(False, f"{name} must be a list, not {_short(value)}")
            for item in value:
                if not isinstance(item, kind):  # the text of a good one would take long to make
                    need(False, f"{name} holds {_short(item)}, not {words}")
        for name in ("tag", "vllm", "remove_when"):
            value = getattr(self, name)
            need(isinstance(value, str), f"{name} must be a string, not {_short(value)}")
        status = self.upstream
        words = "Upstream.pending(...) or the like"
        need(isinstance(status, Upstream), f"upstream is {_short(status)}, not {words}")
        need(status.status in STATUSES, f"upstream {_short(status.status)} is none of the statuses")
        need(isinstance(status.detail, str), f"upstream says {_short(status.detail)}, not a string")
        need(isinstance(self.monkey_patch_lines, int), "monkey_patch_lines must be a number")
        for example in self.examples:
            parts = [example.path, example.before, example.after or ""]
            strings = all(isinstance(part, str) for part in parts)
            need(strings, "an example takes a path and two texts, as strings")

    def _validate(self, id: str, doc: str) -> None:
        def need(holds: object, what: str) -> None:
            if not holds:
                raise TransformError(f"transform {id}: {what}")

        need(_ID.match(id), "the file name must be lower case letters, digits and underscores")
        self._validate_types(need)
        need(isinstance(doc, str), f"the docstring is {_short(doc)}, not a string")
        title, _, rest = doc.partition("\n")
        need(title.endswith("."), "the docstring's first line must be a sentence")
        need(len(title) <= 72, f"the docstring's first line is {len(title)} characters, 72 at most")
        need(rest.strip(), "the docstring must say what is wrong and what the edit does")
        need(rest.startswith("\n"), "the docstring needs an empty line after the first")
        for seed in self.seeds:
            need(_SEED.match(seed), f"seed {seed!r} is not like 'platform/3' or 'worker/7a'")
        need(self.tag in SUBJECT_TAGS, f"tag {self.tag!r} is not one of {', '.join(SUBJECT_TAGS)}")
        try:
            SpecifierSet(self.vllm)
        except InvalidSpecifier:
            need(False, f"vllm {self.vllm!r} is not a version specifier")
        need(self.remove_when.strip(), "remove_when is empty")
        need(self.edits, "there are no edits")
        for target in self.edits:
            parts = target.path.split("/")
            inside = parts[0] == "vllm" and not {"", ".", ".."}.intersection(parts)
            sound = inside and target.path.endswith(".py") and target.path.isprintable()
            need(sound, f"{target.path!r} is not like 'vllm/a.py'")
            need(
                target.path != GENERATED,
                f"{GENERATED} is made anew for the wheel, so an edit of it would be lost",
            )
        need(self.monkey_patch_lines >= 0, "monkey_patch_lines is negative")
        need(id not in self.after, "after names the transform itself")
        for example in self.examples:
            need(
                example.path in self.paths,
                f"the example for {example.path} names no file that the transform edits",
            )
        if self.upstream.stands_alone:
            for target in self.edits:
                need(
                    not target.mentions("ascend_runtime"),
                    f"{target.path}: an edit meant for upstream must not mention ascend_runtime",
                )
