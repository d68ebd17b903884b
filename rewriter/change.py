"""Changes to a file as byte spans: what an edit claims and writes, and how text is laid in."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

_SILENT = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENCODING, tokenize.ENDMARKER)
_STATEMENT_END = re.compile(rb"[^\r\n]*(\r\n|\r|\n)?")


@dataclass(frozen=True)
class Frame:
    """What stands around and between the texts that are inserted at one point: commas."""

    opening: bytes = b""
    between: bytes = b""
    closing: bytes = b""


@dataclass(frozen=True)
class Write:
    """Put `text` in the place of the bytes from `start` to `end`.

    Insertions at one point with the same `frame` share it.
    """

    start: int
    end: int
    text: bytes
    frame: Frame | None = None


@dataclass(frozen=True)
class Change:
    """One place that an edit changes.

    `start` to `end` is the code it claims: two transforms may not claim the same code. An insertion
    claims a point; `commutes` says that others may insert there too, in any order (list elements).
    Two that commute but give different things the same `name` cannot both be made.
    """

    start: int
    end: int
    writes: tuple[Write, ...]
    commutes: bool = False
    name: str = ""

    def clashes(self, other: Change) -> bool:
        """Whether the two changes cannot both be made without a declared order."""
        if self.start == self.end == other.start == other.end:
            if self.writes == other.writes:
                return False
            return not (self.commutes and other.commutes) or "" != self.name == other.name
        return self.overlaps(other)

    def overlaps(self, other: Change) -> bool:
        """Whether the two changes write over each other, in whatever order."""
        if self.start == self.end == other.start == other.end:
            return False
        if self.start == self.end or other.start == other.end:
            point, span = (self, other) if self.start == self.end else (other, self)
            return span.start < point.start < span.end
        return self.start < other.end and other.start < self.end


def splice(data: bytes, writes: Iterable[Write]) -> bytes:
    """Return `data` with all writes made; insertions at one point keep the order given."""
    parts, position = [], 0
    for write in sorted(_framed(writes), key=lambda w: (w.start, w.end)):
        parts += [data[position : write.start], write.text]
        position = max(position, write.end)
    return b"".join([*parts, data[position:]])


def _framed(writes: Iterable[Write]) -> list[Write]:
    """Join the insertions that share a frame."""
    groups: dict[object, list[Write]] = {}
    for number, write in enumerate(writes):
        key = number if write.frame is None else (write.start, write.frame)
        groups.setdefault(key, []).append(write)
    joined = []
    for group in groups.values():
        first = group[0]
        frame = first.frame or Frame()
        text = frame.opening + frame.between.join(w.text for w in group) + frame.closing
        joined.append(Write(first.start, first.end, text))
    return joined


def line_start(data: bytes, offset: int) -> int:
    """Return where the line of `offset` begins (behind a byte order mark)."""
    start = max(data.rfind(b"\n", 0, offset), data.rfind(b"\r", 0, offset)) + 1
    return 3 if start == 0 and data.startswith(b"\xef\xbb\xbf") else start


def line_end(data: bytes, offset: int) -> int:
    """Return where the line of `offset` ends, its newline included."""
    match = _STATEMENT_END.match(data, offset)
    return match.end() if match else len(data)


def _fixed_lines(text: str) -> set[int]:
    """The lines (from 0) that begin inside a string, whose spaces count; not docstrings."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a decorator alone
        return set()
    strings = [n for n in ast.walk(tree) if isinstance(n, (ast.Constant, ast.JoinedStr))]
    free = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    spans = [(n.lineno, n.end_lineno or n.lineno) for n in strings if n not in free]
    return {line for first, last in spans for line in range(first, last)}


def block(text: str, indent: bytes, newline: bytes) -> bytes:
    """Lay statements in at an indentation: whole lines, each ended by `newline`."""
    lines = text.encode().split(b"\n")
    fixed = _fixed_lines(text) if "\n" in text else set()
    return b"".join(
        (indent if line.strip() and number not in fixed else b"") + line + newline
        for number, line in enumerate(lines)
    )


def _line_above(data: bytes, start: int) -> int:
    """Return where the line above the one that begins at `start` begins."""
    return line_start(data, start - (2 if data[:start].endswith(b"\r\n") else 1))


def comments_above(data: bytes, start: int, indent: bytes, *, gaps: bool = False) -> int:
    """Return where the comment lines directly above the line at `start` begin.

    Only comments with the same `indent` count: deeper ones belong to the code above. With `gaps`,
    empty lines between comments do not end the search.
    """
    here = start
    while here > 0:
        above = _line_above(data, here)
        line = data[above:here]
        if not line.startswith(indent + b"#") and (not gaps or line.strip() or above == here):
            break
        start = above if line.strip() else start
        here = above
    return start


def comments_below(data: bytes, end: int, indent: bytes) -> int:
    """Return the end of the deeper comments that follow a block, its last line ending at `end`."""
    here = end
    while here < len(data):
        below = line_end(data, here)
        line = data[here:below]
        if line.strip():
            space = line[: len(line) - len(line.lstrip())]
            if not line.lstrip().startswith(b"#") or len(space) <= len(indent):
                break
            end = below
        here = below
    return end


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """Split an expression into (string, start, end) with offsets in characters.

    An f-string is one token, as it was before Python 3.12.
    """
    starts = [-1, *(match.end() for match in re.finditer("\n", text))]
    found: list[tuple[str, int, int]] = []
    depth = begin = 0
    for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline):
        if token.type in _SILENT or token.end[0] > len(starts):
            continue
        start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        name = tokenize.tok_name[token.type]
        if name in ("FSTRING_START", "TSTRING_START"):
            begin, depth = (begin if depth else start), depth + 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            start = begin
        if not depth:
            found.append((text[max(start, 0) : end], start, end))
    return found[1:]


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _ascii(byte: bytes) -> str:
    """A byte beside an expression as text; only ASCII ones matter."""
    return byte.decode() if byte and byte.isascii() else " "


def _apart(left: str, text: str, right: str) -> str:
    """Return `text` with the spaces that keep it from running into its neighbours."""
    if not text:
        return " " if _is_word(left) and _is_word(right) else ""
    # Two opening braces in an f-string would be one literal brace.
    before = " " if (_is_word(left) and _is_word(text[0])) or left == text[0] == "{" else ""
    return before + text + (" " if _is_word(text[-1]) and _is_word(right) else "")


def expression_writes(data: bytes, start: int, end: int, put: str) -> tuple[Write, ...]:
    """Return the smallest writes, token by token, that turn `data[start:end]` into `put`.

    Comments and line breaks between tokens that stay are kept.
    """
    old = data[start:end].decode()
    left_of, right_of = _ascii(data[start - 1 : start]), _ascii(data[end : end + 1])
    clean = old.replace("\r\n", "\n")
    if "\r" in clean or "\f" in clean:  # the tokenizer would translate them
        return (Write(start, end, _apart(left_of, put, right_of).encode()),)
    before, after = _tokens(clean), _tokens(put)
    matcher = SequenceMatcher(None, [t[0] for t in before], [t[0] for t in after], autojunk=False)
    # Where each character of the text without carriage returns lies in the file.
    sizes = (len(piece.encode()) for piece in re.findall(r"(?s)\r\n|.", old))
    places = list(accumulate(sizes, initial=start))
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
            if j1 == j2 and i2 < len(before) and before[i1 - 1][0] in "([{":
                left, right = before[i1][1], before[i2][1]
        else:
            left, text_left = 0, 0
            right = before[i2][1] if i2 < len(before) else len(clean)
            text_right = after[j2][1] if j2 < len(after) else len(put)
        beside = clean[left - 1] if left else left_of, (clean[right:] or right_of)[0]
        text = _apart(beside[0], put[text_left:text_right], beside[1])
        writes.append(Write(places[left], places[right], text.encode()))
    return tuple(writes)
