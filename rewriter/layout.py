"""Lay edited files out as vLLM's own linter wants them: imports sorted, code formatted by ruff.

A file that the formatter would leave alone before the edit is formatted whole afterwards, so only
the edit can move; in any other file only the edited lines are. The same holds for the order of
imports.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import dropwhile, takewhile
from pathlib import Path, PurePosixPath

from ruff.__main__ import find_ruff_bin

from rewriter.errors import RewriterError

#: For a base without settings of its own (a wheel).
_DEFAULT = b"""\
[project]
name = "vllm"
version = "0"
requires-python = ">=3.10"

[tool.ruff.format]
docstring-code-format = true
"""
#: Undefined names, and what the compiler refuses beyond syntax.
_FAULTS = "F821,F7,F404,PLE0117,PLE0118,PLE1142"
#: Begins the message about a file that does not parse.
SYNTAX = "syntax error: "
_BOM = b"\xef\xbb\xbf"
_FIRST_PARTY = "lint.isort.known-first-party=['vllm']"


class Layout:
    """ruff with the settings of one base. `work` is a scratch folder."""

    def __init__(self, base_root: Path, work: Path) -> None:
        self.work = work
        self.config = work / "ruff" / "pyproject.toml"
        self.config.parent.mkdir(parents=True, exist_ok=True)
        settings = base_root / "pyproject.toml"
        text = settings.read_bytes() if settings.is_file() else b""
        text = text if b"[tool.ruff" in text else _DEFAULT
        self.config.write_bytes(text)
        #: Of a file before the edit: whether its imports are sorted, and whether it is formatted.
        self._stable: dict[bytes, tuple[bool, bool]] = {}
        self._batches = 0

    def _start(self, *args: str, folder: Path) -> Callable[[], str]:
        """Start ruff on a folder; return what waits for it and gives its output."""
        command = [_binary(), *args, "--no-cache"]
        command += ["--config", str(self.config), "--config", _FIRST_PARTY, "."]
        # Files, so that a ruff that nobody reads from yet does not wait.
        output, errors = folder.with_suffix(".out"), folder.with_suffix(".err")
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err)

        def finish() -> str:
            status = process.wait()
            if status < 0:
                raise RewriterError(f"ruff was ended by signal {-status}; build again")
            if status:
                _raise_unless_unparsed(errors.read_text("utf-8", "replace"))
            return output.read_text("utf-8", "replace")

        return finish

    def _ruff(self, *args: str, folder: Path) -> str:
        return self._start(*args, folder=folder)()

    def _folder(self) -> Path:
        self._batches += 1
        folder = self.work / f"layout-{self._batches}"
        folder.mkdir()
        return folder

    def _place(self, folder: Path, name: str, data: bytes) -> Path:
        place = folder / name
        place.write_bytes(data)
        return place

    def _sort(self, folder: Path) -> None:
        self._ruff("check", "--select", "I", "--fix", "--quiet", "--exit-zero", folder=folder)

    def run(self, edited: Sequence[tuple[str, bytes, bytes]]) -> list[bytes]:
        """Lay out files given as (path, before, after); return what each becomes.

        Raises RewriterError if ruff does not run.
        """
        # ruff drops a byte order mark, or stumbles over it.
        bare = [
            (path, before.removeprefix(_BOM), after.removeprefix(_BOM))
            for path, before, after in edited
        ]
        marks = [_BOM if after.startswith(_BOM) else b"" for _, _, after in edited]
        return [mark + data for mark, data in zip(marks, self._run(bare), strict=True)]

    def _run(self, edited: Sequence[tuple[str, bytes, bytes]]) -> list[bytes]:
        paths = {before: path for path, before, _ in edited if before not in self._stable}
        unknown = list(paths)
        if not edited:
            return []
        folder = self._folder()
        batch = [(paths[before], before) for before in unknown]
        batch += [(path, after) for path, _, after in edited]
        # Flat, for ruff's settings depend on no path here, and folders cost more than files.
        places = [
            self._place(folder, f"{n}{PurePosixPath(path).suffix}", data)
            for n, (path, data) in enumerate(batch)
        ]
        self._sort(folder)
        is_sorted = [place.read_bytes() == data for place, data in zip(places, unknown)]  # noqa: B905
        self._ruff("format", folder=folder)
        for place, before, is_so in zip(places, unknown, is_sorted):  # noqa: B905
            self._stable[before] = is_so, is_so and place.read_bytes() == before
        laid = [place.read_bytes() for place in places[len(unknown) :]]
        return [
            result if self._stable[before][1] else self._ranges(path, before, after)
            for (path, before, after), result in zip(edited, laid, strict=True)
        ]

    def _ranges(self, path: str, before: bytes, after: bytes) -> bytes:
        """Format only the lines that differ from `before`, from the bottom up."""
        folder = self._folder()
        place = self._place(folder, PurePosixPath(path).name, after)
        if self._stable[before][0]:
            self._sort(folder)
            after = place.read_bytes()
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        for tag, _, _, first, last in reversed(opcodes):
            if tag != "equal" and last > first:
                self._ruff("format", "--range", f"{first + 1}-{last + 1}", folder=folder)
                laid = place.read_bytes().splitlines(keepends=True)
                new = _without_gaps(new, laid, first, last)
                place.write_bytes(b"".join(new))
        return place.read_bytes()

    def faults(self, files: Mapping[str, bytes]) -> Callable[[], dict[str, set[str]]]:
        """Start to look for faults of syntax and for undefined names in files.

        The function returned waits for the result: for each file, by key, what ruff says of it.
        """
        folder = self._folder()
        for number, data in enumerate(files.values()):
            (folder / f"{number}.py").write_bytes(data)
        options = ["--select", _FAULTS, "--ignore-noqa", "--exit-zero", "--output-format", "json"]
        finish = self._start("check", *options, folder=folder)
        keys = list(files)

        def result() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {key: set() for key in keys}
            for entry in json.loads(finish()):
                match = re.match(r"(\d+)\.py$", Path(entry["filename"]).name)
                if match:
                    syntax = SYNTAX * (entry["code"] in (None, "invalid-syntax"))
                    found[keys[int(match.group(1))]].add(syntax + entry["message"])
            return found

        return result


def _binary() -> str:
    try:
        return str(find_ruff_bin())
    except FileNotFoundError:
        raise RewriterError("ruff is missing; install it with: pip install ruff==0.14.0") from None


def _raise_unless_unparsed(stderr: str) -> None:
    """Raise RewriterError, unless ruff only complains of files that do not parse.

    Such a file is left as it is; `faults` tells whose it is.
    """
    errors = [line for line in stderr.splitlines() if line.startswith("error")]
    if errors and all(line.startswith("error: Failed to parse") for line in errors):
        return
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(("error:", "Cause: Failed to parse"))]
    reason = ": ".join([*causes[:1], *lines[-1:]]) or "no message"
    raise RewriterError(f"ruff cannot lay out the edited files: {reason}")


def _without_gaps(old: list[bytes], laid: list[bytes], first: int, last: int) -> list[bytes]:
    """Return the lines `laid` without the empty lines put around the lines `first` to `last`.

    They would be changes of code that is not edited.
    """
    lines: list[bytes] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, laid, autojunk=False).get_opcodes():
        put, was = laid[j1:j2], old[i1:i2]
        if tag == "equal" or (first < i1 and i2 < last):
            lines += put
        elif all(map(_is_empty, [*put, *was])):
            lines += was
        else:
            before = list(takewhile(_is_empty, was))
            behind = list(takewhile(_is_empty, reversed(was)))
            kept = list(dropwhile(_is_empty, reversed(list(dropwhile(_is_empty, put)))))
            lines += [*before, *reversed(kept), *reversed(behind)]
    return lines


def _is_empty(line: bytes) -> bool:
    return not line.strip()
