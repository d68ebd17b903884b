"""Two versions of a file side by side, as HTML: highlighted, with the changed words marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise, zip_longest

from markupsafe import Markup, escape
from pygments.lexers.python import PythonLexer
from pygments.token import (
    Comment,
    Keyword,
    Literal,
    Name,
    Number,
    Operator,
    String,
    _TokenType,
    is_token_subtype,
)

from rewriter import diffs

Token = tuple[str, str]  # CSS class and text
Line = list[Token]

_CLASSES = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Literal, "s"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "d"),
    (Name.Builtin, "b"),
)
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_SAFE_START = re.compile(rb"[ \t]*(async[ \t]+def|def|class)[ \t]|[ \t]*@")
_FAR = 400  # lines; more are not lexed for the sake of one hunk
_ALIKE = 0.5  # two lines less alike than this are not shown as one that changed
_MANY = 1600  # pairs of lines; a larger block is paired from the top, without a search


@dataclass(frozen=True)
class Cell:
    """One line of one version: its 1-based number and its HTML."""

    number: int
    code: Markup
    end: str = ""  # a note if the file ends here without a line feed


@dataclass(frozen=True)
class Row:
    """One line of the view. `kind` is "same" or "edit"; a side is None where the other has more."""

    kind: str
    old: Cell | None
    new: Cell | None


@dataclass(frozen=True)
class Block:
    """One hunk: the `def` or `class` line above it, its first line in the base, and its rows."""

    heading: str
    line: int
    rows: tuple[Row, ...]


def blocks(path: str, before: bytes | None, after: bytes | None, context: int = 3) -> list[Block]:
    """Return the hunks of one file, ready for the page; everything in them is escaped."""
    old, new = diffs.split(before), diffs.split(after)
    result = []
    for hunk in diffs.hunks(old, new, context):
        left = _Side(path, old, hunk.old_start, hunk.old_end)
        right = _Side(path, new, hunk.new_start, hunk.new_end)
        rows = tuple(_rows(hunk, left, right))
        result.append(Block(_decoded(hunk.heading), hunk.old_start + 1, rows))
    return result


class _Side:
    """The lines of one version that a hunk shows, highlighted once."""

    def __init__(self, path: str, lines: Sequence[bytes], start: int, end: int) -> None:
        self._lines = lines
        self._start = start
        texts = [_decoded(line) for line in lines[start:end]]
        self._tokens: list[Line] = [[("", text)] for text in texts]
        if path.endswith((".py", ".pyi")):
            self._tokens = _highlighted(lines, start, end) or self._tokens

    def text(self, index: int) -> str:
        return "".join(text for _, text in self._tokens[index - self._start])

    def cell(self, index: int, marks: Sequence[tuple[int, int]] = ()) -> Cell:
        end = "" if self._lines[index].endswith(b"\n") else "no newline at the end of the file"
        return Cell(index + 1, _html(self._tokens[index - self._start], marks), end)


def _rows(hunk: diffs.Hunk, left: _Side, right: _Side) -> Iterator[Row]:
    i, j = hunk.old_start, hunk.new_start
    for change in hunk.changes:
        for step in range(change.old_start - i):
            yield Row("same", left.cell(i + step), right.cell(j + step))
        yield from _edited(change, left, right)
        i, j = change.old_end, change.new_end
    for step in range(hunk.old_end - i):
        yield Row("same", left.cell(i + step), right.cell(j + step))


def _edited(change: diffs.Change, left: _Side, right: _Side) -> Iterator[Row]:
    old = [left.text(index) for index in range(change.old_start, change.old_end)]
    new = [right.text(index) for index in range(change.new_start, change.new_end)]
    for a, b, alike in _pairs(old, new):
        marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        if alike and a is not None and b is not None:
            marks = _changed_words(old[a], new[b])
        yield Row(
            "edit",
            None if a is None else left.cell(change.old_start + a, marks[0]),
            None if b is None else right.cell(change.new_start + b, marks[1]),
        )


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int | None, int | None, bool]]:
    """Put lines that are alike on one row, in order; the others fill the rows between."""
    i = j = 0
    for a, b in [*_alike(old, new), (len(old), len(new))]:
        for x, y in zip_longest(range(i, a), range(j, b)):
            yield x, y, False
        if a < len(old):
            yield a, b, True
        i, j = a + 1, b + 1


def _alike(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairing, in order on both sides, of the lines that are most alike in all."""
    if not old or not new or len(old) * len(new) > _MANY:
        return []
    words_old, words_new = ([_WORD.findall(line.strip()) for line in lines] for lines in (old, new))
    best: list[list[float]] = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    ratio: dict[tuple[int, int], float] = {}
    for i in reversed(range(len(old))):
        for j in reversed(range(len(new))):
            value = _likeness(words_old[i], words_new[j])
            ratio[i, j] = value if value >= _ALIKE else -1.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], ratio[i, j] + best[i + 1][j + 1])
    pairs = []
    i = j = 0
    while i < len(old) and j < len(new):
        if ratio[i, j] > 0 and best[i][j] == ratio[i, j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _likeness(a: Sequence[str], b: Sequence[str]) -> float:
    """Return 0 to 1: how much of the shorter line is kept, tempered by how much there is new."""
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    runs = matcher.get_matching_blocks()
    same = [word for run in runs for word in a[run.a : run.a + run.size]]
    if not any(word.isidentifier() for word in same):
        return 0.0  # brackets and blanks are alike everywhere
    return (2 * len(same) / (len(a) + len(b)) + len(same) / min(len(a), len(b))) / 2


def _changed_words(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the spans of characters that differ, in each of two lines."""
    a, b = _WORD.findall(old), _WORD.findall(new)
    at_a, at_b = _offsets(a), _offsets(b)
    # The ends first: in `f(True)` -> `f(make())` the last bracket is the old one.
    tail = 0
    while tail < min(len(a), len(b)) and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    matcher = SequenceMatcher(None, a[: len(a) - tail], b[: len(b) - tail], autojunk=False)
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag != "equal":
            marks[0].append((at_a[a1], at_a[a2]))
            marks[1].append((at_b[b1], at_b[b2]))
    return marks


def _offsets(words: Iterable[str]) -> list[int]:
    offsets = [0]
    for word in words:
        offsets.append(offsets[-1] + len(word))
    return offsets


def _highlighted(lines: Sequence[bytes], start: int, end: int) -> list[Line] | None:
    """Return the tokens of `lines[start:end]`, or None if the lexer changed the text.

    Lexing begins at the function or class above, so that a hunk inside a docstring is known for
    one, and large files cost no more than small ones.
    """
    first = start
    while first > 0 and start - first < _FAR and not _SAFE_START.match(lines[first]):
        first -= 1
    texts = [_decoded(line) for line in lines[first:end]]
    result: list[Line] = [[]]
    for kind, value in _LEXER.get_tokens("\n".join(texts)):
        head, *more = value.split("\n")
        for number, piece in enumerate((head, *more)):
            if number:
                result.append([])
            if piece:
                result[-1].append((_css(kind), piece))
    if ["".join(text for _, text in line) for line in result] != texts:
        return None
    return result[start - first :]


_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def _css(kind: _TokenType) -> str:
    return next((name for group, name in _CLASSES if is_token_subtype(kind, group)), "")


def _html(tokens: Line, marks: Sequence[tuple[int, int]]) -> Markup:
    """Return a line as HTML; `marks` are the spans of characters to stand out."""
    out: list[Markup] = []
    at = 0
    for name, text in tokens:
        cuts = sorted(
            {0, len(text), *(x - at for span in marks for x in span if at < x < at + len(text))}
        )
        for low, high in pairwise(cuts):
            marked = any(a <= at + low < b for a, b in marks)
            piece = escape(text[low:high])
            classes = " ".join(part for part in (name, "x" if marked else "") if part)
            out.append(
                Markup('<span class="{}">{}</span>').format(classes, piece) if classes else piece
            )
        at += len(text)
    return Markup("").join(out)


def _decoded(line: bytes) -> str:
    """Return a line to look at: no line feed, and odd characters shown rather than obeyed."""
    text = line.removesuffix(b"\n").decode("utf-8", "replace")
    text = text.replace("\r", "^M").replace("\ufeff", "")
    return "".join(
        char if char == "\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
