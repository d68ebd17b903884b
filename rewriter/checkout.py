"""Copying what git tracks out of a checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from rewriter.cache import os_errors
from rewriter.errors import RewriterError
from rewriter.unpack import check_copied_links, check_totals, copy_one, is_needed

DIRTY = "-dirty"
_RELEASE_TAG = re.compile(r"v(\d+\.\d+\.\d+(rc\d+)?(\.post\d+)?)")


@dataclass(frozen=True)
class Checkout:
    """The commit a checkout is at, and the version of the release tag on that commit, if any.

    As in `git describe --dirty`, `commit` ends in "-dirty" if what lies there is not that commit.
    """

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
    check_copied_links(path, into)
    gone = {name for name in tracked if not os.path.lexists(path / name)}
    if _changed(path, gone, say):
        commit += DIRTY
    return Checkout(commit, _tagged(_git(path, "tag", "--points-at", "HEAD").decode()))


def _changed(path: Path, gone: set[str], say: Callable[[str], None]) -> bool:
    """Whether tracked files are not as in the commit; a sparse checkout hides them from git."""
    differing = _names(_git(path, "diff", "--name-only", "-z", "HEAD"))
    changed = len(gone.union(differing))
    if changed:
        say(
            f"warning: {changed} files of the checkout differ from its commit; they are taken as "
            f"they lie, and the commit is recorded with {DIRTY}"
        )
    command = ("ls-files", "-z", "--others", "--exclude-standard", "--", "vllm")
    untracked = len(_names(_git(path, *command)))
    if untracked:
        say(f"{untracked} files below vllm/ are not tracked by git; they are left out")
    return bool(changed)


def _tagged(tags: str) -> Version | None:
    """Return the highest version among tags such as v0.18.0, v0.18.0rc1, v0.18.0.post1."""
    found = (_RELEASE_TAG.fullmatch(tag) for tag in tags.splitlines())
    return max((Version(tag[1]) for tag in found if tag), default=None)


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
        said = run.stderr.decode("utf-8", "replace").strip().partition("\n")[0] or "it failed"
        if "dubious ownership" in said:
            place = shlex.quote(str(folder))
            said += f"; run git config --global --add safe.directory {place}, or chown it"
        raise RewriterError(f"git cannot read the checkout {folder}: {said}")
    return run.stdout
