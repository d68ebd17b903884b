"""The output folder: artefacts are made beside it and moved in at the end, all or nothing.

Only files that an earlier build of ours wrote, and that nobody has changed since, are taken away.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rewriter.cache import Cache, os_errors, sha256_of
from rewriter.errors import RewriterError

REPORT = "report.json"
_STAGING = ".building-"


class Output:
    """The folder that a build leaves its artefacts in."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        self.folder = folder.absolute()
        self.cache = cache

    @property
    def lock_name(self) -> str:
        """One lock for each output folder."""
        resolved = str(self.folder.resolve())
        return f"out-{hashlib.sha256(resolved.encode()).hexdigest()[:16]}"

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Give a fresh folder on the same disk; it is gone afterwards, and so is a new empty `out`.

        Raises RewriterError if the output folder cannot be made or written.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RewriterError(f"--out {self.folder}: is a file; name a folder")
        made = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        with os_errors(f"--out {self.folder}: cannot be written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(f"{_STAGING}*"):
                shutil.rmtree(stale)  # of a build that was killed: we hold the lock
            staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self.folder))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()  # fails, as it should, when something is in it

    def publish(self, staging: Path) -> None:
        """Move everything from `staging` into the folder, and take old artefacts away."""
        files = sorted(p.relative_to(staging) for p in staging.rglob("*") if p.is_file())
        stale = [old for old in self._own() if old not in files]
        for file in files:
            if (self.folder / file).is_dir():
                raise RewriterError(f"--out {self.folder}: {file} is a folder there; move it away")
        # The report comes last: it vouches for what is already there.
        files.sort(key=lambda file: file.name == REPORT)
        with _uninterrupted(), os_errors(f"--out {self.folder}: cannot be written"):
            for file in files:
                target = self.folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                (staging / file).replace(target)
            for old in stale:
                (self.folder / old).unlink(missing_ok=True)

    def _own(self) -> list[Path]:
        """The artefacts that the last report names and that still are what it says."""
        try:
            report = json.loads((self.folder / REPORT).read_bytes())
            artifacts = dict(report["artifacts"])
        except (OSError, ValueError, KeyError, TypeError):
            return []
        own = []
        for name, sha256 in artifacts.items():
            path = Path(str(name))
            inside = not path.is_absolute() and ".." not in path.parts
            file = self.folder / path
            if inside and file.is_file() and sha256_of(file) == sha256:
                own.append(path)
        return own


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C off for the moment in which files are moved."""
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_tree(target: Path, base_root: Path, files: dict[str, bytes], runtime: Path) -> None:
    """Write the edited tree, with `ascend_runtime` beside `vllm`, to a folder that is new or empty.

    Raises RewriterError if the folder holds something or cannot be written.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RewriterError(f"--tree {target}: exists and is not an empty folder")
    skip = shutil.ignore_patterns("__pycache__", "*.pyc")
    with os_errors(f"--tree {target}: cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING}{target.name}-", dir=target.parent))
        try:
            shutil.copytree(base_root, staging / "tree", ignore=skip)
            shutil.copytree(runtime, staging / "tree" / "ascend_runtime", ignore=skip)
            for path, data in files.items():
                (staging / "tree" / path).write_bytes(data)
            if target.exists():
                target.rmdir()
            (staging / "tree").replace(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
