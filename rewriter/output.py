"""The output folder: artefacts are made beside it and moved in at the end, all or nothing.

Only files that an earlier build of ours wrote are replaced or taken away. A build holds a lock on
the folder itself, so that builds with other caches, by other users or in containers wait too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rewriter.cache import os_errors, sha256_of
from rewriter.errors import RewriterError

REPORT, PAGE = "report.json", "report.html"
#: Where patches go, so that it can be looked at before the work.
_FOLDERS = ("patches", "patches/standalone", "patches/series")
_MARK = "made-by-vllm-ascend-rewriter"

Say = Callable[[str], None]


class Output:
    """The folder that a build leaves its artefacts in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @contextmanager
    def staging(self, say: Say) -> Iterator[Path]:
        """Give a fresh folder on the same disk; it is gone afterwards, and so is a new empty `out`.

        Waits while another build has the folder. Raises RewriterError if the folder cannot be made
        or written, or if it holds something in the place of an artefact.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RewriterError(f"--out {self.folder}: is a file; name a folder")
        with _taken_back_if_empty(self.folder), _locked(self.folder, "--out", say):
            self._refuse_foreign([REPORT, PAGE, *(f"{f}/x" for f in _FOLDERS)])
            with _staging(self.folder, "out", "--out") as staging:
                yield staging

    def publish(self, staging: Path) -> None:
        """Move everything from `staging` into the folder, and take old artefacts away."""
        files = sorted(
            p.relative_to(staging).as_posix()
            for p in staging.rglob("*")
            if p.is_file() and p.name != _MARK
        )
        self._refuse_foreign(files)
        stale = [name for name in self._unchanged() if name not in files]
        # The report comes first: a build that is killed here leaves nothing that the next one
        # does not know as its own.
        files.sort(key=lambda name: name != REPORT)
        with _uninterrupted(), os_errors(f"--out {self.folder}: cannot be written"):
            for name in files:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).replace(self.folder / name)
            for name in stale:
                (self.folder / name).unlink(missing_ok=True)

    def _refuse_foreign(self, names: Iterable[str]) -> None:
        """Raise RewriterError if something that is not ours is where files are to go."""
        artifacts = self._artifacts()
        ours = {REPORT, *artifacts} if artifacts else set()
        for name in names:
            target = self.folder / name
            for folder in target.relative_to(self.folder).parents[:-1]:
                place = self.folder / folder
                if place.is_symlink() or (place.exists() and not place.is_dir()):
                    raise self._foreign(folder.as_posix())
            if target.is_dir() and not target.is_symlink():
                raise self._foreign(name)
            if (target.exists() or target.is_symlink()) and name not in ours:
                raise self._foreign(name)

    def _foreign(self, name: str) -> RewriterError:
        return RewriterError(
            f"--out {self.folder}: {name} is there and no build of ours made it;"
            " move it away or choose another folder"
        )

    def _artifacts(self) -> Mapping[str, str]:
        """The artefacts of the last build, with their sha256, as its report names them."""
        try:
            report = json.loads((self.folder / REPORT).read_bytes())
            ours = {"schema", "base", "project_version", "artifacts"} <= set(report)
            found = dict(report["artifacts"]) if ours else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        names = {str(name): str(sha256) for name, sha256 in found.items()}
        inside = (n for n in names if not Path(n).is_absolute() and ".." not in Path(n).parts)
        return {name: names[name] for name in inside}

    def _unchanged(self) -> list[str]:
        """Those that nobody has changed since."""
        return [
            name
            for name, sha256 in self._artifacts().items()
            if (self.folder / name).is_file() and sha256_of(self.folder / name) == sha256
        ]


@contextmanager
def _taken_back_if_empty(folder: Path) -> Iterator[None]:
    """Remove, afterwards, what was made of a folder and those above it and is still empty."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()  # fails, as it should, when something is in it


@contextmanager
def _locked(folder: Path, option: str, say: Say) -> Iterator[None]:
    """Make a folder and hold a lock on it, which the system gives back if we are killed."""
    while True:
        with os_errors(f"{option} {folder}: cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _wait_for(handle, say)
            if _is_still(folder, handle):
                yield
                return
        finally:
            os.close(handle)


def _is_still(folder: Path, handle: int) -> bool:
    """Whether the folder was not taken away, new and empty, by who had the lock before."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


def _wait_for(handle: int, say: Say) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another build")
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        # Some network file systems have no locks; there, the user has to take care.
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL):
            raise


@contextmanager
def _staging(folder: Path, kind: str, option: str) -> Iterator[Path]:
    """Give a marked folder below a locked one; those of builds that were killed are removed."""
    prefix = f".vllm-ascend-{kind}-"
    with os_errors(f"{option} {folder}: cannot be written"):
        for stale in folder.glob(f"{prefix}*"):
            if not stale.is_symlink() and (stale / _MARK).is_file():
                shutil.rmtree(stale)
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        (staging / _MARK).touch()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C off for the moment in which files are moved."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_inside(option: str, folder: Path, source: str | None) -> None:
    """Raise RewriterError if output would become part of the source's own package."""
    if source is not None and Path(source).is_dir():
        package = Path(source).resolve() / "vllm"
        if folder.resolve().is_relative_to(package):
            raise RewriterError(f"{option} {folder}: is inside the source's vllm/; choose another")


def check_tree_target(target: Path) -> None:
    """Raise RewriterError unless the folder is new or empty."""
    empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if (target.exists() or target.is_symlink()) and not empty:
        raise RewriterError(f"--tree {target}: exists and is not an empty folder")


def write_tree(
    target: Path, base_root: Path, files: Mapping[str, bytes], runtime: Path, say: Say
) -> None:
    """Write the edited tree, with `ascend_runtime` beside `vllm`, to a folder that is new or empty.

    Raises RewriterError if the folder holds something or cannot be written.
    """
    target = target.absolute()
    parent = target.parent
    with (
        _taken_back_if_empty(parent),
        _locked(parent, "--tree", say),
        _staging(parent, "tree", "--tree") as staging,
    ):
        check_tree_target(target)
        with os_errors(f"--tree {target}: cannot be written"):
            _copy(base_root, staging / "tree")
            _copy(runtime, staging / "tree" / "ascend_runtime")
            for path, data in files.items():
                (staging / "tree" / path).write_bytes(data)
            with suppress(FileNotFoundError):
                target.rmdir()
            (staging / "tree").replace(target)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder; the first fault ends it, where shutil would collect thousands."""
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    except shutil.Error as error:
        first = str(error.args[0][0][2]).partition("] ")[2] or "unknown reason"
        raise OSError(None, first.partition(": ")[0]) from None
