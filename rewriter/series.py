"""Applied transforms as mail-format patches: one that stands alone for each, and all in order.

Every patch goes through `git apply` and `git am --keep-non-patch` (without the option git drops the
`[Bugfix]` of the subject). A patch that edits a file with CRLF line ends needs `git am --keep-cr`,
and says so. The author is the program and the date is fixed, because a build twice must give the
same bytes; there is no sign-off, which only a person can give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.header import Header
from pathlib import Path

from rewriter import __version__, diffs
from rewriter.base import Base
from rewriter.errors import RewriterError
from rewriter.rewrite import Rewritten
from rewriter.transform import Transform, Upstream

AUTHOR = "vllm-ascend-rewriter <vllm-ascend-rewriter@localhost>"
DATE = "Mon, 17 Sep 2001 00:00:00 +0000"  # the date git itself puts on the first line of a patch
_NO_COMMIT = "0" * 40
_URL = re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:]")
_ISSUE = re.compile(r"/issues/\d+")
# What `git am` takes for the end of the message, for a new mail or for a header when a line of the
# message starts with it.
_MAIL_SYNTAX = re.compile(r"(---|diff -|Index: |>?From |\[PATCH|-- |--$|[A-Za-z][A-Za-z-]*:(\s|$))")


@dataclass(frozen=True)
class Delta:
    """One file before and after one patch, and its mode as git writes it."""

    path: str
    before: bytes | None
    after: bytes
    mode: str = diffs.MODE


def write_patches(
    base: Base,
    originals: Callable[[str], bytes],
    rewritten: Rewritten,
    transforms: Sequence[Transform],
    out: Path,
) -> tuple[Path, ...]:
    """Write `patches/standalone/<id>.patch` and `patches/series/NNNN-<id>.patch` under `out`.

    `originals` returns a file of the pristine base by its path and raises FileNotFoundError for one
    that the base has not. Returns the files written, relative to `out`. Raises RewriterError where
    a file cannot be written.
    """
    written = []
    for name, data in render(base, originals, rewritten, transforms):
        target = out / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise RewriterError(f"cannot write {target}: {error.strerror or error}") from error
        written.append(Path(name))
    return tuple(written)


def render(
    base: Base,
    originals: Callable[[str], bytes],
    rewritten: Rewritten,
    transforms: Sequence[Transform],
) -> Iterator[tuple[str, bytes]]:
    """Yield the relative name and the bytes of every patch."""
    known = {transform.id: transform for transform in transforms}
    for id in sorted(rewritten.alone):
        files = rewritten.alone[id]
        deltas = [
            Delta(path, _read(originals, path), files[path], diffs.file_mode(base.root, path))
            for path in sorted(files)
        ]
        requires = prerequisites(known[id], known, rewritten.alone)
        yield f"patches/standalone/{id}.patch", mail(base, known[id], deltas, requires=requires)
    total = len(rewritten.series)
    for number, (id, deltas) in enumerate(_series(base, originals, rewritten), start=1):
        data = mail(base, known[id], deltas, place=(number, total))
        yield f"patches/series/{number:04d}-{id}.patch", data


def prerequisites(
    transform: Transform, known: Mapping[str, Transform], applied: Iterable[str]
) -> tuple[str, ...]:
    """Return the applied transforms that must come before, those they need included, sorted."""
    found: set[str] = set()
    queue = list(transform.after)
    while queue:
        id = queue.pop()
        if id not in found and id in known:
            found.add(id)
            queue += known[id].after
    return tuple(sorted(found.intersection(applied)))


def mail(
    base: Base,
    transform: Transform,
    deltas: Sequence[Delta],
    *,
    place: tuple[int, int] | None = None,
    requires: Sequence[str] = (),
) -> bytes:
    """Return one patch; `place` is its number in a series and the length of that."""
    has_cr = any(b"\r\n" in delta.after or b"\r\n" in (delta.before or b"") for delta in deltas)
    head = [
        f"From {base.commit or _NO_COMMIT} Mon Sep 17 00:00:00 2001",
        f"From: {AUTHOR}",
        f"Date: {DATE}",
        *_subject(transform, place),
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
        "",
        *_message(transform.body),
        "",
        *_dep3(transform, requires),
        *(["Apply-With: git am --keep-cr (a file has CRLF line ends)"] if has_cr else []),
        f"Base-Version: {base.version}",
        *([f"base-commit: {base.commit}"] if base.commit else []),
        "---",
        *_diffstat(deltas),
        "",
        "",
    ]
    diff = b"".join(
        diffs.unified(delta.path, delta.before, delta.after, mode=delta.mode) for delta in deltas
    )
    tail = f"-- \n{__version__}\n\n"
    return "\n".join(head).encode("utf-8") + diff + tail.encode()


def _series(
    base: Base, originals: Callable[[str], bytes], rewritten: Rewritten
) -> Iterator[tuple[str, list[Delta]]]:
    now: dict[str, bytes] = {}
    for id, files in rewritten.series:
        yield (
            id,
            [
                Delta(
                    path,
                    now[path] if path in now else _read(originals, path),
                    files[path],
                    diffs.file_mode(base.root, path),
                )
                for path in sorted(files)
            ],
        )
        now.update(files)


def _read(originals: Callable[[str], bytes], path: str) -> bytes | None:
    try:
        return originals(path)
    except FileNotFoundError:
        return None


def _subject(transform: Transform, place: tuple[int, int] | None) -> list[str]:
    number = ""
    if place:
        width = len(str(place[1]))
        number = f" {place[0]:0{width}d}/{place[1]}"
    text = _line(f"[PATCH{number}] [{transform.tag}] {transform.title}")
    plain = text.isascii() and "=?" not in text
    header = Header(text, "us-ascii" if plain else "utf-8", header_name="Subject", maxlinelen=76)
    return f"Subject: {header.encode()}".split("\n")


def _message(body: str) -> list[str]:
    """Return the docstring's lines; one that mail or git would misread is indented by a space."""
    lines = [line.rstrip() for line in body.splitlines()]
    return [f" {line}" if _MAIL_SYNTAX.match(line) else line for line in lines]


def _dep3(transform: Transform, requires: Sequence[str]) -> list[str]:
    """Return the DEP-3 fields and our own; the description is the message above them."""
    upstream = transform.upstream
    fields = [("Origin", f"other, vllm-ascend-rewriter {__version__}")]
    fields += [("Bug", url) for url in _URL.findall(upstream.detail) if _ISSUE.search(url)]
    fields.append(("Forwarded", _forwarded(upstream)))
    if upstream.status == "Backport":
        fields.append(("Applied-Upstream", upstream.detail))
    fields.append(("Upstream-Status", str(upstream)))
    if transform.seeds:
        fields.append(("Seed-Rows", ", ".join(transform.seeds)))
    fields.append(("Remove-When", transform.remove_when))
    if requires:
        fields.append(("Requires", ", ".join(requires)))
    return [f"{name}: {_line(value)}" for name, value in fields]


def _forwarded(upstream: Upstream) -> str:
    if upstream.status == "Pending":
        return "no"
    if upstream.status in ("Submitted", "Denied"):
        urls = [url for url in _URL.findall(upstream.detail) if not _ISSUE.search(url)]
        return urls[0] if urls else upstream.detail or "yes"
    return "not-needed"


def _line(text: str) -> str:
    return " ".join(text.split())


def _diffstat(deltas: Sequence[Delta]) -> list[str]:
    """Return git's summary of the files: a bar for each and the totals."""
    counts = [diffs.count(delta.before, delta.after) for delta in deltas]
    names = max((len(delta.path) for delta in deltas), default=0)
    most = max((added + removed for added, removed in counts), default=0)
    digits = len(str(most))
    room = max(10, 76 - names - digits)
    lines = []
    for delta, (added, removed) in zip(deltas, counts, strict=True):
        plus, minus = (_scaled(number, most, room) for number in (added, removed))
        bar = "+" * plus + "-" * minus
        lines.append(f" {delta.path:<{names}} | {added + removed:>{digits}} {bar}".rstrip())
    total = f" {len(deltas)} file{'s' * (len(deltas) != 1)} changed"
    for number, sign, word in (
        (sum(added for added, _ in counts), "+", "insertion"),
        (sum(removed for _, removed in counts), "-", "deletion"),
    ):
        if number:
            total += f", {number} {word}{'s' * (number != 1)}({sign})"
    return [*lines, total]


def _scaled(number: int, most: int, room: int) -> int:
    """Shrink a bar to its share of the room, but never to nothing."""
    if most <= room or not number:
        return number
    return max(1, number * (room - 1) // most)
