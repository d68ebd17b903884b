"""Where the statements at the top level of a file are, told by indentation alone.

Parsing the one statement that an edit is about is many times faster than parsing its file. The
outline is a guess that cannot mislead: a line inside a string or a bracket that it takes for a new
statement leaves a piece that does not parse, and then the whole file is parsed.
"""

from __future__ import annotations

import re
from bisect import bisect_right

_START = re.compile(rb"(?m)^(?![ \t\f\r\n#)\]}]|(?:elif|else|except|finally)\b)")
_DEFINITION = re.compile(rb"(?:async[ \t]+)?def\b|class\b")
_DEFINES = re.compile(rb"(?:(?:async[ \t]+)?def|class)[ \t]+")
_ASSIGNS = re.compile(rb"[ \t]*(?::|=(?!=))")


class Outline:
    """The top level of a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        # `^` knows one newline only, and no byte order mark.
        plain = not data.startswith(b"\xef\xbb\xbf") and b"\r" not in data
        self.starts = _starts(data) if plain else []

    def block_at(self, offset: int) -> tuple[int, int] | None:
        """Return the span of the statement that an offset lies in."""
        index = bisect_right(self.starts, offset) - 1
        if index < 0:
            return None
        return self.starts[index], [*self.starts, len(self.data)][index + 1]

    def block_of(self, name: bytes) -> tuple[int, int] | None:
        """Return the span of the only statement that defines or assigns a name at the top level.

        None if there is none, or if the name may be defined elsewhere in the file as well.
        """
        lines = {line for line in map(self._defining_line, self._uses(name)) if line is not None}
        if len(lines) != 1:
            return None
        (line,) = lines
        return None if self.data[line : line + 1].isspace() else self.block_at(line)

    def _uses(self, name: bytes) -> list[tuple[int, int]]:
        return [m.span() for m in re.finditer(rb"\b%b\b" % re.escape(name), self.data)]

    def _defining_line(self, use: tuple[int, int]) -> int | None:
        """Return where the line of a name begins, if it defines or assigns the name, roughly."""
        start, end = use
        line = self.data.rfind(b"\n", 0, start) + 1
        before = self.data[line:start].lstrip()
        defines = _DEFINES.fullmatch(before)
        assigns = _ASSIGNS.match(self.data, end) and not set(before) & set(b"([#")
        return line if defines or assigns else None


def _starts(data: bytes) -> list[int]:
    """Return where statements begin; decorators belong to what they decorate."""
    starts = []
    decorated = False
    for match in _START.finditer(data):
        start = match.start()
        if not decorated:
            starts.append(start)
        if data.startswith(b"@", start):
            decorated = True
        elif decorated and _DEFINITION.match(data, start):
            decorated = False
    return starts
