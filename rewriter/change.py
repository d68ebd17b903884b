"""Changes to a file as byte spans: what an edit claims and writes, and how text is laid in."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

_SILENT = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENCODING, tokenize.ENDMARKER)
_STATEMENT_END = re.compile(rb"[^\r\n]*(\r\n|\r|\n)?")


@dataclass(frozen=True)
class Write:
    """Put `text` in the place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class Change:
    """One place that an edit changes.

    `start` to `end` is the code it claims: two transforms may not claim the same code. An insertion
    claims a point; `commutes` says that others may insert there too, in any order (list elements).
    """

    start: int
    end: int
    writes: tuple[Write, ...]
    commutes: bool = False

    def clashes(self, other: Change) -> bool:
        """Whether the two changes cannot both be made without a declared order."""
        if self.start == self.end == other.start == other.end:
            same_text = self.writes == other.writes
            return not (self.commutes and other.commutes) and not same_text
        if self.start == self.end or other.start == other.end:
            point, span = (self, other) if self.start == self.end else (other, self)
            return span.start < point.start < span.end
        return self.start < other.end and other.start < self.end


def splice(data: bytes, writes: Iterable[Write]) -> bytes:
    """Return `data` with all writes made; insertions at one point keep the order given."""
    parts, position = [], 0
    for write in sorted(writes, key=lambda w: (w.start, w.end)):
        parts += [data[position : write.start], write.text]
        position = max(position, write.end)
    return b"".join([*parts, data[position:]])


def line_start(data: bytes, offset: int) -> int:
    """Return where the line of `offset` begins (behind a byte order mark)."""
    start = max(data.rfind(b"\n", 0, offset), data.rfind(b"\r", 0, offset)) + 1
    return 3 if start == 0 and data.startswith(b"\xef\xbb\xbf") else start


def line_end(data: bytes, offset: int) -> int:
    """Return where the line of `offset` ends, its newline included."""
    match = _STATEMENT_END.match(data, offset)
    return match.end() if match else len(data)


def block(text: str, indent: bytes, newline: bytes) -> bytes:
    """Lay statements in at an indentation: whole lines, each ended by `newline`."""
    lines = text.encode().split(b"\n")
    return b"".join((indent + line if line.strip() else b"") + newline for line in lines)


def comments_above(data: bytes, start: int, *, gaps: bool = False) -> int:
    """Return where the comment lines directly above the line at `start` begin.

    With `gaps`, empty lines between comments do not end the search.
    """
    here = start
    while here > 0:
        above = line_start(data, here - 1)
        line = data[above:here].strip() if above < here else None
        if line is None or not (line.startswith(b"#") or (gaps and not line)):
            break
        start = above if line else start
        here = above
    return start


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """Split an expression into (string, start, end) with offsets in characters."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    readline = io.StringIO(f"({text}\n)").readline
    found = []
    for token in tokenize.generate_tokens(readline):
        if token.type not in _SILENT:
            (row, column), (end_row, end_column) = token.start, token.end
            shift = 1 if row == 1 else 0
            end_shift = 1 if end_row == 1 else 0
            if row - 1 < len(starts) and end_row - 1 < len(starts):
                begin = starts[row - 1] + column - shift
                found.append((token.string, begin, starts[end_row - 1] + end_column - end_shift))
    return found[1:-1]


def expression_writes(data: bytes, start: int, end: int, put: str) -> tuple[Write, ...]:
    """Return the smallest writes, token by token, that turn `data[start:end]` into `put`.

    Comments and line breaks between tokens that stay are kept.
    """
    old = data[start:end].decode()
    if "\r" in old or "\f" in old:  # the tokenizer would translate them and shift the offsets
        return (Write(start, end, put.encode()),)
    before, after = _tokens(old), _tokens(put)
    matcher = SequenceMatcher(None, [t[0] for t in before], [t[0] for t in after], autojunk=False)
    writes = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        if i1 and j1:  # from the end of the token before, so that spacing comes along
            left, text_left = before[i1 - 1][2], after[j1 - 1][2]
            if i1 < i2 and j1 < j2:
                left, text_left = before[i1][1], after[j1][1]
            right = before[i2 - 1][2] if i1 < i2 else left
            text_right = after[j2 - 1][2] if j1 < j2 else text_left
        else:
            left, text_left = 0, 0
            right = before[i2][1] if i2 < len(before) else len(old)
            text_right = after[j2][1] if j2 < len(after) else len(put)
        writes.append((left, right, put[text_left:text_right]))
    offsets = [(len(old[:a].encode()), len(old[:b].encode()), text) for a, b, text in writes]
    return tuple(Write(start + a, start + b, text.encode()) for a, b, text in offsets)
