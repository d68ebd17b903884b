"""Differences between two versions of a file, as bytes: line runs, hunks and git's unified format.

Lines end at a line feed and nowhere else, as git sees them, so carriage returns, byte order marks
and bytes that are no UTF-8 go through untouched. Large files with few edits are the common case:
lines that occur once in both versions are matched first (patience diff), and only what lies between
them is searched line by line.
"""

from __future__ import annotations

import hashlib
import io
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

_HEADING = re.compile(rb"[ \t]*((?:class|(?:async[ \t]+)?def)[ \t].*)")
_PLAIN_PATH = re.compile(r"[ !#-\[\]-~]+\Z")
_WORD = re.compile(rb"\w")
#: The mode of a file as git writes it, where no other is known.
MODE = "100644"
_EXECUTABLE = "100755"
_NO_BLOB = "0" * 40


@dataclass(frozen=True)
class Change:
    """Lines `old_start:old_end` became lines `new_start:new_end` (0-based, half open)."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


@dataclass(frozen=True)
class Hunk:
    """Changes close to each other, with the context around them (0-based, half open).

    `heading` is the nearest `def` or `class` line above, for readers.
    """

    old_start: int
    old_end: int
    new_start: int
    new_end: int
    heading: bytes
    changes: tuple[Change, ...]


def split(data: bytes | None) -> list[bytes]:
    """Return the lines of `data`, each with its line feed; no lines for None."""
    return io.BytesIO(data or b"").readlines()


def count(before: bytes | None, after: bytes | None) -> tuple[int, int]:
    """Return how many lines were added and how many removed; None is a file that is not there."""
    found = changes(split(before), split(after))
    added = sum(change.new_end - change.new_start for change in found)
    removed = sum(change.old_end - change.old_start for change in found)
    return added, removed


def file_mode(root: Path, path: str) -> str:
    """Return git's mode of a file of the tree `root`; the usual one if it cannot be told."""
    try:
        executable = (root / path).stat().st_mode & 0o100  # the bit that git looks at
    except OSError:
        return MODE
    return _EXECUTABLE if executable else MODE


def unified(
    path: str, before: bytes | None, after: bytes | None, context: int = 3, *, mode: str = MODE
) -> bytes:
    """Return the change of one file as `git diff` writes it; nothing if there is none.

    `before` or `after` is None where the file is created or deleted; `mode` is the file's. The
    blob hashes are given in full, so `git am -3` can merge in a clone that has the base's files.
    """
    if before == after:
        return b""
    out = [f"diff --git {_quote('a/' + path)} {_quote('b/' + path)}\n".encode()]
    if before is None:
        out.append(f"new file mode {mode}\n".encode())
    if after is None:
        out.append(f"deleted file mode {mode}\n".encode())
    kept = f" {mode}" if before is not None and after is not None else ""
    out.append(f"index {_blob(before)}..{_blob(after)}{kept}\n".encode())
    old, new = split(before), split(after)
    found = hunks(old, new, context)
    if found:
        out.append(_file_line("---", "a/", path, before))
        out.append(_file_line("+++", "b/", path, after))
    for hunk in found:
        out += hunk_lines(hunk, old, new)
    return b"".join(out)


def hunk_lines(hunk: Hunk, old: Sequence[bytes], new: Sequence[bytes]) -> list[bytes]:
    """Return one hunk in unified format, header first."""
    ranges = (
        f"@@ -{_range(hunk.old_start, hunk.old_end)} +{_range(hunk.new_start, hunk.new_end)} @@"
    )
    out = [ranges.encode() + (b" " + hunk.heading if hunk.heading else b"") + b"\n"]
    at = hunk.old_start
    for change in hunk.changes:
        out += [_marked(b" ", line) for line in old[at : change.old_start]]
        out += [_marked(b"-", line) for line in old[change.old_start : change.old_end]]
        out += [_marked(b"+", line) for line in new[change.new_start : change.new_end]]
        at = change.old_end
    out += [_marked(b" ", line) for line in old[at : hunk.old_end]]
    return out


def hunks(old: Sequence[bytes], new: Sequence[bytes], context: int = 3) -> list[Hunk]:
    """Group the changes into hunks with `context` unchanged lines on each side."""
    groups: list[list[Change]] = []
    for change in changes(old, new):
        if groups and change.old_start - groups[-1][-1].old_end <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    result = []
    for group in groups:
        before = min(context, group[0].old_start)
        after = min(context, len(old) - group[-1].old_end)
        start = group[0].old_start - before
        result.append(
            Hunk(
                start,
                group[-1].old_end + after,
                group[0].new_start - before,
                group[-1].new_end + after,
                _heading(old, start),
                tuple(group),
            )
        )
    return result


def changes(old: Sequence[bytes], new: Sequence[bytes]) -> list[Change]:
    """Return the runs of lines that differ, in order, with an unchanged line between any two."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    found: list[Change] = []
    i = j = 0
    for anchor_i, anchor_j in [*_anchors(a, b), (len(a), len(b))]:
        found += _between(a[i:anchor_i], b[j:anchor_j], head + i, head + j)
        i, j = anchor_i + 1, anchor_j + 1
    return _slide(found, old, new)


def _anchors(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the longest rising run of lines that occur exactly once on both sides.

    A line without a word, such as a lone bracket, says nothing about where it belongs.
    """
    in_a, in_b = Counter(a), Counter(b)
    place = {line: j for j, line in enumerate(b) if in_b[line] == 1 and _WORD.search(line)}
    pairs = [(i, place[line]) for i, line in enumerate(a) if in_a[line] == 1 and line in place]
    tops: list[int] = []  # the smallest end of a run of each length
    ends: list[int] = []  # and the pair it belongs to
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(tops, j)
        previous.append(ends[length - 1] if length else -1)
        tops[length : length + 1] = [j]
        ends[length : length + 1] = [index]
    run = []
    index = ends[-1] if ends else -1
    while index >= 0:
        run.append(pairs[index])
        index = previous[index]
    return run[::-1]


def _between(a: Sequence[bytes], b: Sequence[bytes], i: int, j: int) -> list[Change]:
    """Return the changes between two anchors; `i` and `j` are where the pieces start."""
    if a == b:
        return []
    if not a or not b:
        return [Change(i, i + len(a), j, j + len(b))]
    return [
        Change(i + a_start, i + a_end, j + b_start, j + b_end)
        for tag, a_start, a_end, b_start, b_end in SequenceMatcher(
            None, a, b, autojunk=False
        ).get_opcodes()
        if tag != "equal"
    ]


def _slide(found: list[Change], old: Sequence[bytes], new: Sequence[bytes]) -> list[Change]:
    """Move each pure insertion or deletion to where a reader expects it.

    `x y` + `z y` can be shown as `+y z` or `+z y`; the better one starts after an empty line and at
    a low indentation. One that can be moved up against the change before it becomes one with that.
    """
    result: list[Change] = []
    for index, next_change in enumerate(found):
        change = next_change
        while result and (joined := _joined(result[-1], change, old, new)):
            result.pop()
            change = joined
        in_new = change.old_start == change.old_end
        if in_new or change.new_start == change.new_end:
            lines = new if in_new else old
            low = _span(result[-1], in_new)[1] + 1 if result else 0
            high = _span(found[index + 1], in_new)[0] - 1 if index + 1 < len(found) else len(lines)
            step = _best_shift(lines, *_span(change, in_new), low, high)
            change = Change(
                change.old_start + step,
                change.old_end + step,
                change.new_start + step,
                change.new_end + step,
            )
        result.append(change)
    return result


def _joined(
    last: Change, change: Change, old: Sequence[bytes], new: Sequence[bytes]
) -> Change | None:
    """Return both as one if `change`, a pure one, can be moved up to touch `last`."""
    in_new = change.old_start == change.old_end
    if not in_new and change.new_start != change.new_end:
        return None
    lines = new if in_new else old
    start, end = _span(change, in_new)
    gap = start - _span(last, in_new)[1]
    if any(lines[start - step] != lines[end - step] for step in range(1, gap + 1)):
        return None
    return Change(last.old_start, change.old_end - gap, last.new_start, change.new_end - gap)


def _span(change: Change, in_new: bool) -> tuple[int, int]:
    if in_new:
        return change.new_start, change.new_end
    return change.old_start, change.old_end


def _best_shift(lines: Sequence[bytes], start: int, end: int, low: int, high: int) -> int:
    up = 0
    while start - up > low and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    down = 0
    while end + down < high and lines[start + down] == lines[end + down]:
        down += 1

    def badness(shift: int) -> tuple[bool, int, bool, int]:
        first = lines[start + shift]
        indent = len(first) - len(first.lstrip())
        after_blank = start + shift == 0 or not lines[start + shift - 1].strip()
        return not first.strip(), indent, not after_blank, -shift

    return min(range(-up, down + 1), key=badness)


def _heading(lines: Sequence[bytes], before: int) -> bytes:
    for index in range(before - 1, -1, -1):
        match = _HEADING.match(lines[index])
        if match:
            text = match[1].strip()[:80]
            return text.decode("utf-8", "ignore").encode()
    return b""


def _marked(mark: bytes, line: bytes) -> bytes:
    return (
        mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"
    )


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


def _file_line(mark: str, prefix: str, path: str, data: bytes | None) -> bytes:
    if data is None:
        return f"{mark} /dev/null\n".encode()
    tab = "\t" if " " in path else ""  # git ends a name that holds a space so
    return f"{mark} {_quote(prefix + path)}{tab}\n".encode()


def _quote(path: str) -> str:
    """Return the path as git writes it: in C quotes where it holds anything unusual."""
    if _PLAIN_PATH.match(path):
        return path
    escapes = {0x22: '\\"', 0x5C: "\\\\", 0x09: "\\t", 0x0A: "\\n"}
    raw = path.encode("utf-8", "surrogateescape")
    text = "".join(
        escapes.get(byte, chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw
    )
    return f'"{text}"'


def _blob(data: bytes | None) -> str:
    if data is None:
        return _NO_BLOB
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
