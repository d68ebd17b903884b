"""The cache folder: downloaded sdists by their hash, locks, and the folders that builds work in."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

from rewriter.errors import RewriterError

_APP = "vllm-ascend-rewriter"
_MARKER = "CACHEDIR.TAG"
# The first line is what backup programs look for; the second tells our folder from any other cache.
_MARKER_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# The cache of vllm-ascend-rewriter; it may be deleted at any time.\n"
)
_PARTS = ("sdists", "versions", "built", "work", "locks")
_ELSEWHERE = "set VLLM_ASCEND_CACHE to a folder that can be written"
MORE_SPACE = "free space there, or set VLLM_ASCEND_CACHE to a folder on another disk"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def os_errors(doing: str, writing: Path | None = None) -> Iterator[None]:
    """Turn an OSError into a one-line RewriterError that begins with `doing`.

    `writing` is the folder that is written to, for a full disk: Python then names no file, or the
    one that was read.
    """
    try:
        yield
    except OSError as error:
        if writing and is_full(error):
            raise no_space(doing, error, writing) from error
        place = f": {error.filename}" if isinstance(error.filename, str) else ""
        raise RewriterError(f"{doing}: {error.strerror or error}{place}") from error


def is_full(error: BaseException) -> bool:
    """Whether a disk, a quota or the largest allowed file was at its end."""
    return isinstance(error, OSError) and error.errno in NO_SPACE


def no_space(
    doing: str, error: BaseException | str, folder: Path, cure: str = MORE_SPACE
) -> RewriterError:
    """Return the error that says which folder is full and what to do."""
    reason = (isinstance(error, OSError) and error.strerror) or error
    return RewriterError(f"{doing}: {reason}: {folder}; {cure}")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as hexadecimal digits; RewriterError if it cannot be read."""
    with os_errors(f"{path.name} cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of our own, safe to share between builds that run side by side.

    Below `folder` lie `sdists/<sha256>/<file name>`, `versions/<version>` (the sha256 first seen of
    a version whose hash nobody pinned), `built/` (what the tests compiled), `work/` and `locks/`.
    The folder is made when it is first needed; one that is neither empty nor ours is refused with
    a RewriterError, so that neither a build nor `clean` can touch anything else.
    """

    folder: Path

    @classmethod
    def default(cls) -> Cache:
        """Return the cache in $VLLM_ASCEND_CACHE, or else in the user's cache folder."""
        chosen = os.environ.get("VLLM_ASCEND_CACHE")
        with os_errors("the cache folder cannot be found"):
            if chosen:
                folder = os.path.expanduser(os.path.expandvars(chosen))  # noqa: PTH111 - raises nothing
            else:
                folder = platformdirs.user_cache_dir(_APP, appauthor=False)
            if folder.startswith("~"):
                raise RewriterError(
                    f"the cache folder {folder} is in the home of a user who has none; "
                    "set VLLM_ASCEND_CACHE to a folder by its full path"
                )
            return cls(Path(folder).absolute())

    @contextmanager
    def lock(self, name: str, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the lock `name`; wait, after telling so through `say`, while another process has it.

        A killed process gives its locks back. A lock cannot be taken twice by one thread. The file
        goes with the lock: there is one for each release, and they would pile up.
        """
        self._open()
        lock = self._filelock(self.folder / "locks" / f"{name}.lock")
        if not _acquire(lock):
            if say:
                say("waiting for another build")
            _acquire(lock, wait=True)
        try:
            yield
        finally:
            _remove(lock)

    @contextmanager
    def work(self, label: str) -> Iterator[Path]:
        """Give a fresh folder for a build's intermediate files; it is removed at the end.

        What killed builds left behind is removed first.
        """
        with self.lock("work"):
            self._remove_stale()
            self._remove_unused_locks()
            doing = f"no work folder can be made in {self.folder} ({_ELSEWHERE})"
            with os_errors(doing, self.folder):
                folder = Path(tempfile.mkdtemp(prefix=f"{label}-", dir=self.folder / "work"))
            alive = self._filelock(self._alive(folder))
            _acquire(alive)
        try:
            yield folder
        finally:
            # A folder that cannot be removed now is stale, and the next build tries again.
            shutil.rmtree(folder, ignore_errors=True)
            _remove(alive)

    def clean(self) -> int:
        """Remove all that the cache made, and return how many bytes that were.

        Raises RewriterError if the folder is not ours or a build is using it.
        """
        if not self.folder.exists():
            return 0
        if not self._is_ours():
            raise RewriterError(
                f"{self.folder} was not made by this program, so it is not deleted; "
                "check VLLM_ASCEND_CACHE"
            )
        with self.lock("work"):
            parts = [self.folder / part for part in _PARTS]
            size = sum(_size(part) for part in parts) + _size(self.folder / _MARKER)
            if self._remove_stale() + self._remove_unused_locks():
                raise RewriterError(
                    f"another build is using the cache {self.folder}; try again when it has ended"
                )
            with os_errors(f"the cache {self.folder} cannot be removed"):
                for part in parts:
                    shutil.rmtree(part)
                (self.folder / _MARKER).unlink()
        if not any(self.folder.iterdir()):  # whatever else was put there is not ours to delete
            self.folder.rmdir()
        return size

    def sdist(self, sha256: str, say: Callable[[str], None] | None = None) -> Path | None:
        """Return the cached sdist with this hash, or None.

        A damaged one is removed, and told of through `say`.
        """
        for path in sorted((self.folder / "sdists" / sha256).glob("*.tar.gz")):
            with os_errors(f"the cached file {path.name} cannot be used ({_ELSEWHERE})"):
                if sha256_of(path) == sha256:
                    return path
                path.unlink()
            if say:
                say(f"the cached {path.name} was damaged; it is removed and fetched again")
        return None

    def store(self, file: Path, sha256: str) -> Path:
        """Copy a verified sdist into the cache under its hash, whole or not at all."""
        self._open()
        target = self.folder / "sdists" / sha256 / file.name
        doing = f"{file.name} cannot be put into the cache ({_ELSEWHERE})"
        with os_errors(doing, target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{os.getpid()}.part")
            try:
                shutil.copyfile(file, part)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        return target

    def recorded(self, version: str) -> str | None:
        """Return the sha256 that `record` wrote for a version, or None."""
        try:
            text = (self.folder / "versions" / version).read_bytes()
        except OSError:
            return None
        digits = text.strip().decode("ascii", "replace")
        return digits if len(digits) == 64 and set(digits) <= set("0123456789abcdef") else None

    def record(self, version: str, sha256: str) -> None:
        """Remember the sha256 of a version that nobody pinned, as first seen."""
        self._open()
        with os_errors(f"the cache cannot be written ({_ELSEWHERE})", self.folder):
            part = self.folder / "versions" / f".{os.getpid()}.part"
            part.write_bytes(sha256.encode("ascii") + b"\n")
            part.replace(self.folder / "versions" / version)

    def _open(self) -> None:
        doing = f"the cache folder {self.folder} cannot be made ({_ELSEWHERE})"
        with os_errors(doing, self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._is_ours():
                self._claim()
            for part in _PARTS:
                (self.folder / part).mkdir(exist_ok=True)

    def _claim(self) -> None:
        """Put our marker into an empty folder; two builds may do so at once."""
        part = self.folder / f"{_MARKER}.{os.getpid()}"
        others = [path.name for path in self.folder.iterdir() if not path.name.startswith(_MARKER)]
        if others and not self._is_ours():
            raise RewriterError(
                f"the cache folder {self.folder} holds other files; "
                "set VLLM_ASCEND_CACHE to a folder that is empty or does not exist yet"
            )
        part.write_bytes(_MARKER_TEXT)
        part.replace(self.folder / _MARKER)

    def _is_ours(self) -> bool:
        try:
            return (self.folder / _MARKER).read_bytes() == _MARKER_TEXT
        except OSError:
            return False

    @staticmethod
    def _alive(work: Path) -> Path:
        """Return the lock file that a build holds as long as its work folder is in use."""
        return work.with_name(f"{work.name}.lock")

    @staticmethod
    def _filelock(path: Path) -> filelock.BaseFileLock:
        return filelock.FileLock(path)

    def _remove_stale(self) -> int:
        """Remove the work folders of dead builds and return the number of living ones.

        The caller holds the lock "work", so no folder is between being made and being locked.
        """
        living = 0
        for folder in [path for path in (self.folder / "work").iterdir() if path.is_dir()]:
            lock = self._filelock(self._alive(folder))
            if _acquire(lock):
                shutil.rmtree(folder, ignore_errors=True)
                _remove(lock)
            else:
                living += 1
        return living

    def _remove_unused_locks(self) -> int:
        """Remove the lock files that killed builds left, and return the number of those in use.

        The caller holds the lock "work", which is not counted.
        """
        used = 0
        for path in (self.folder / "locks").glob("*.lock"):
            if path.name != "work.lock":
                lock = self._filelock(path)
                if _acquire(lock):
                    _remove(lock)
                else:
                    used += 1
        return used


def _acquire(lock: filelock.BaseFileLock, wait: bool = False) -> bool:
    """Take a lock; False if another process has it and we are not to wait."""
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RewriterError(
            f"the cache file {lock.lock_file} cannot be locked: {reason}; {_ELSEWHERE}"
        ) from error
    return True


def _remove(lock: filelock.BaseFileLock) -> None:
    """Give a lock back and remove its file.

    It is removed while it is held. Whoever has opened it by then finds that what it locked is no
    file any more, and filelock (since 3.21) opens the path anew.
    """
    with suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


def _size(path: Path) -> int:
    """Return the bytes of a file or of all files below a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.lstat().st_size for file in files)
