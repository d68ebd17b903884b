"""Lay edited files out as vLLM's own linter wants them: imports sorted, code formatted by ruff.

A file that the formatter would leave alone before the edit is formatted whole afterwards, so only
the edit can move; in any other file only the edited lines are.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

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
        self._stable: dict[bytes, bool] = {}
        self._batches = 0

    def _ruff(self, *args: str, folder: Path) -> str:
        command = [find_ruff_bin(), *args, "--no-cache"]
        command += ["--config", str(self.config), "--config", _FIRST_PARTY, "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode > 1:
            reason = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
            raise RewriterError(f"ruff cannot lay out the edited files: {reason.strip()}")
        return done.stdout

    def _folder(self) -> Path:
        self._batches += 1
        folder = self.work / f"layout-{self._batches}"
        folder.mkdir()
        return folder

    def _lay_out(self, files: Sequence[tuple[str, bytes]]) -> list[bytes]:
        folder = self._folder()
        places = []
        for number, (path, data) in enumerate(files):
            place = folder / str(number) / path
            place.parent.mkdir(parents=True)
            place.write_bytes(data)
            places.append(place)
        self._ruff("check", "--select", "I", "--fix", "--quiet", "--exit-zero", folder=folder)
        self._ruff("format", "--quiet", folder=folder)
        return [place.read_bytes() for place in places]

    def run(self, edited: Sequence[tuple[str, bytes, bytes]]) -> list[bytes]:
        """Lay out files given as (path, before, after); return what each becomes.

        Raises RewriterError if ruff does not run.
        """
        unknown = list({before: path for path, before, _ in edited if before not in self._stable})
        paths = {before: path for path, before, _ in edited}
        batch = [(paths[before], before) for before in unknown]
        batch += [(path, after) for path, _, after in edited]
        if not batch:
            return []
        laid = self._lay_out(batch)
        for before, result in zip(unknown, laid, strict=False):
            self._stable[before] = before == result
        return [
            result if self._stable[before] else self._ranges(path, before, after)
            for (path, before, after), result in zip(edited, laid[len(unknown) :], strict=True)
        ]

    def _ranges(self, path: str, before: bytes, after: bytes) -> bytes:
        """Format only the lines that differ from `before`, from the bottom up."""
        folder = self._folder()
        place = folder / path
        place.parent.mkdir(parents=True)
        place.write_bytes(after)
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        for tag, _, _, first, last in reversed(opcodes):
            if tag != "equal" and last > first:
                self._ruff("format", "--quiet", "--range", f"{first + 1}-{last + 1}", folder=folder)
        return place.read_bytes()

    def faults(self, files: Mapping[str, bytes]) -> dict[str, set[str]]:
        """Return for each file, by key, what ruff says of its syntax and of undefined names."""
        folder = self._folder()
        for number, data in enumerate(files.values()):
            (folder / f"{number}.py").write_bytes(data)
        text = self._ruff(
            "check", "--select", "F821", "--exit-zero", "--output-format", "json", folder=folder
        )
        found: dict[str, set[str]] = {key: set() for key in files}
        keys = list(files)
        for entry in json.loads(text or "[]"):
            match = re.match(r"(\d+)\.py$", Path(entry["filename"]).name)
            if match:
                found[keys[int(match.group(1))]].add(entry["message"])
        return found
