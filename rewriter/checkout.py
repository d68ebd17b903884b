"""Copying what git tracks out of a checkout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from rewriter.cache import os_errors
from rewriter.errors import RewriterError
from rewriter.unpack import check_totals, copy_one, is_needed


@dataclass(frozen=True)
class Checkout:
    """The commit a checkout is at, and the version of the release tag on that commit, if any."""

    commit: str
    version: Version | None


def copy_checkout(path: Path, into: Path, say: Callable[[str], None]) -> Checkout:
    """Copy the tracked files of the checkout `path`, as they lie, into the folder `into`.

    Of those, it takes the ones that `unpack_sdist` takes of an sdist.
    Changes that are not committed are taken along and deleted files left out; files that git does
    not track (byte code, built extensions, notes) are left out. Both are told through `say`.
    Submodules are left out. Raises RewriterError if git cannot read the checkout or a path leads
    out of it.
    """
    commit = _git(path, "rev-parse", "HEAD").decode().strip()
    tracked = _names(_git(path, "ls-files", "-z"))
    needed = [path / name for name in tracked if is_needed(PurePosixPath(name).parts, False)]
    files = [file for file in needed if os.path.lexists(file)]
    inside = path.resolve()
    for parent in {file.parent for file in files}:
        if not parent.resolve().is_relative_to(inside):
            raise RewriterError(f"{parent} leads out of the checkout; put the folder back")
    size = 0
    for count, file in enumerate(files, 1):
        if file.is_dir() and not file.is_symlink():
            continue  # a submodule
        size += file.lstat().st_size
        check_totals(str(path), count, size)
        copy_one(path, file, into)
    _tell(path, say)
    return Checkout(commit, _tagged(_git(path, "tag", "--points-at", "HEAD").decode()))


def _tell(path: Path, say: Callable[[str], None]) -> None:
    changed = len(_names(_git(path, "diff", "--name-only", "-z", "HEAD")))
    if changed:
        say(f"{changed} files of the checkout differ from its commit; they are taken as they lie")
    command = ("ls-files", "-z", "--others", "--exclude-standard", "--", "vllm")
    untracked = len(_names(_git(path, *command)))
    if untracked:
        say(f"{untracked} files below vllm/ are not tracked by git; they are left out")


def _tagged(tags: str) -> Version | None:
    """Return the highest version among tags such as v0.18.0."""
    versions = []
    for tag in tags.split():
        try:
            versions.append(Version(tag.removeprefix("v")))
        except InvalidVersion:
            continue
    return max(versions, default=None)


def _names(listing: bytes) -> list[str]:
    return sorted({os.fsdecode(name) for name in listing.split(b"\0") if name})


def _git(folder: Path, *arguments: str) -> bytes:
    # Run from a git hook, GIT_DIR and the like would point to another repository. Without optional
    # locks git does not refresh the index: the checkout stays as it is, to the byte.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    folder = folder.resolve()
    # The ceiling keeps git from taking a repository further up for this one.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"} | ceiling
    with os_errors("git cannot be run; install it, or give the sdist by --source"):
        run = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=env,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    if run.returncode:
        said = run.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise RewriterError(f"git cannot read the checkout {folder}: {said or 'it failed'}")
    return run.stdout
