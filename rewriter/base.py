"""The vLLM release being edited: where it came from and where its files lie."""

from __future__ import annotations

import ast
import email
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from rewriter.cache import Cache, os_errors, sha256_of
from rewriter.checkout import DIRTY, copy_checkout
from rewriter.errors import RewriterError
from rewriter.fetch import fetch_sdist
from rewriter.unpack import compiled_files, copy_tree, is_odd, unpack_sdist, unpack_wheel

DEFAULT_VERSION = "0.18.0"

# The sdists on the public index, by version.
KNOWN_SDISTS = {
    "0.18.0": "9a1bee091db8dbb4664a2a09cd9c61912e9912a44af1ce12b8593a231d05971c",
    "0.18.1": "8d18eff1c4ed21eb8cf7a45a1d1b34752d5ec287e79186e451d5c2f797cacdb7",
}

_PURE = {Tag("py3", "none", "any")}


@dataclass(frozen=True)
class Base:
    """An opened vLLM source: a folder that holds `vllm/`, read only.

    `origin` is "sdist", "wheel", "tree" or "checkout"; `file` is the name of the archive (never a
    path), None for a folder; `sha256` is the archive's, or for a folder a digest of the sorted
    names and contents of `vllm/` (see `digest`); `version` is the PEP 440 version of vLLM; `commit`
    is the git commit of a checkout, with "-dirty" behind it if the files are not those of it.
    """

    version: str
    sha256: str
    origin: str
    root: Path
    file: str | None = None
    commit: str | None = None
    name: str = "vllm"

    @property
    def facts(self) -> dict[str, str | None]:
        """All but its place on this machine, for reports and the manifest."""
        return {
            "name": self.name,
            "version": self.version,
            "sha256": self.sha256,
            "origin": self.origin,
            "file": self.file,
            "commit": self.commit,
        }


@dataclass(frozen=True)
class _Request:
    """What the user asked for, beyond the place of the source."""

    given: Version | None
    allow_unknown: bool
    cache: Cache
    into: Path
    say: Callable[[str], None]


def open_base(
    *,
    source: str | None,
    version: str,
    base_version: str | None,
    allow_unknown: bool,
    cache: Cache,
    work: Path,
    say: Callable[[str], None],
) -> Base:
    """Find vLLM, verify it, and lay its files out below the existing folder `work`.

    Without `source` it is the sdist of `version`, from the cache or else from where the user's pip
    would get it. `source` is an sdist (.tar.gz), a pure-Python wheel, a git checkout or any other
    unpacked tree; it is never changed. `base_version` is the version of a tree or checkout.

    A version without a known hash is downloaded only with `allow_unknown`, and so is a file taken
    that calls itself a known version but has another hash. Trees, checkouts, wheels and sdists of
    other versions are the user's own choice and are taken as they are.

    A tree without `vllm/_version.py` (which vLLM's own build generates), or whose version
    `base_version` overrides, gets one in the copy.

    Raises RewriterError for whatever cannot be found, verified or safely unpacked.
    """
    asked = _parsed(version, "--vllm")
    given = _parsed(base_version, "--base-version") if base_version else None
    with os_errors(f"no folder can be made in {work}"):
        into = Path(tempfile.mkdtemp(prefix="base-", dir=work)).resolve()
    request = _Request(given, allow_unknown, cache, into, say)
    if source is None:
        return _open_release(asked, request)
    return _open_source(source, request)


def _open_source(source: str, request: _Request) -> Base:
    with os_errors("--source cannot be read"):
        path = Path(os.path.expanduser(source)).absolute()  # noqa: PTH111 - this one never raises
        is_folder, is_file = path.is_dir(), path.is_file()
        exists = path.exists()
        is_checkout = (path / ".git").exists() if is_folder else False  # a file in a worktree
    if is_folder:
        return (_open_checkout if is_checkout else _open_tree)(path, request)
    if exists and not is_file:
        raise RewriterError(f"{source!a} is neither a file nor a folder; check --source")
    if not is_file:
        raise RewriterError(f"there is no {source!a}; check --source")
    if is_odd(path.name):
        raise RewriterError(f"the file {path.name!a} has an odd name; rename it")
    if path.suffix == ".whl":
        return _open_wheel(path, request)
    if path.name.endswith((".tar.gz", ".tgz")):
        return _open_sdist(path, sha256_of(path), request)
    raise RewriterError(f"{path.name} is no .tar.gz, no .whl and no folder; check --source")


def commit_id(commit: str | None) -> str | None:
    """Return what `_version.py` calls the commit: short, and still marked if it is not clean."""
    return commit and f"g{commit[:9]}{DIRTY if commit.endswith(DIRTY) else ''}"


def digest(root: Path) -> str:
    """Return a sha256 over `vllm/` below `root`.

    It goes over all its files in the order of their paths: path, NUL, size in bytes as decimal
    digits, NUL, contents.
    """
    total = hashlib.sha256()
    files = [path for path in (root / "vllm").rglob("*") if not path.is_dir()]
    for place, path in sorted((os.fsencode(path.relative_to(root)), path) for path in files):
        with os_errors("a file of vllm/ cannot be read"):
            content = path.read_bytes()
        total.update(b"%s\0%d\0" % (place, len(content)))
        total.update(content)
    return total.hexdigest()


def _parsed(text: str, option: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise RewriterError(
            f"{option} {text!r} is no version; give one such as {DEFAULT_VERSION}"
        ) from None


def _known_sha256(version: Version) -> str | None:
    return next((sha for text, sha in KNOWN_SDISTS.items() if Version(text) == version), None)


def _open_release(version: Version, request: _Request) -> Base:
    known = _known_sha256(version)
    if known is None and not request.allow_unknown:
        raise RewriterError(
            f"the sha256 of vLLM {version} is not known here, so a download cannot be verified; "
            f"use {' or '.join(KNOWN_SDISTS)}, or go on with --allow-unknown-base"
        )
    file, sha256 = _cached_or_downloaded(version, known, request)
    if known is None:
        request.say(f"vLLM {version} is not verified: its sdist has the sha256 {sha256}")
    base = _open_sdist(file, sha256, request)
    if Version(base.version) != version:
        raise RewriterError(
            f"{file.name} says it is vLLM {base.version}, not {version}; give the file by --source"
        )
    return base


def _cached_or_downloaded(
    version: Version, known: str | None, request: _Request
) -> tuple[Path, str]:
    cache, say = request.cache, request.say
    with cache.lock(f"sdist-{version}", say):  # one of several builds downloads, the others wait
        pinned = known or cache.recorded(str(version))
        damaged: list[str] = []
        file = cache.sdist(pinned, damaged.append) if pinned else None
        for line in damaged:
            say(line)
        if file and pinned:
            say(f"using the cached {file.name}")
            return file, pinned
        if pinned and not known:
            say(f"vLLM {version} had the sha256 {pinned} before; --clean-cache forgets that")
        try:
            fetched, sha256 = fetch_sdist("vllm", version, pinned, request.into / "download", say)
        except RewriterError as error:  # it explains why one who is offline needs the network
            raise RewriterError("; ".join([*damaged, str(error)])) from error
        file = cache.store(fetched, sha256)
        fetched.unlink()
        if not known:
            cache.record(str(version), sha256)
        return file, sha256


def _open_sdist(path: Path, sha256: str, request: _Request) -> Base:
    root = unpack_sdist(path, request.into)
    _check_root(root, path.name)
    version = _archive_version(_stated_version(root), path.name, request.given)
    known = _known_sha256(version)
    if known not in (None, sha256):
        problem = f"{path.name} says it is vLLM {version}, but its sha256 is {sha256}, not {known}"
        if not request.allow_unknown:
            raise RewriterError(f"{problem}; get it again, or go on with --allow-unknown-base")
        request.say(problem)
    _ensure_version_file(root, version, None)
    return Base(str(version), sha256, "sdist", root, file=path.name)


def _open_tree(path: Path, request: _Request) -> Base:
    _check_root(path, str(path))
    root = request.into / "tree"
    root.mkdir()
    copy_tree(path, root)
    _check_pure(root / "vllm", str(path))
    version = request.given or _stated_version(root)
    if version is None:
        raise RewriterError(
            f"{path} says nowhere (PKG-INFO, vllm/_version.py) which version it is; "
            "give it by --base-version"
        )
    _ensure_version_file(root, version, None)
    return Base(str(version), digest(root), "tree", root)


def _open_checkout(path: Path, request: _Request) -> Base:
    _check_root(path, str(path))
    root = request.into / "checkout"
    root.mkdir()
    state = copy_checkout(path, root, request.say)
    _check_root(root, str(path))
    _check_pure(root / "vllm", str(path))
    version = request.given or state.version
    if version is None:
        raise RewriterError(
            f"the commit of {path} has no release tag such as v{DEFAULT_VERSION}, so its version "
            "is not known; give it by --base-version"
        )
    _ensure_version_file(root, version, state.commit)
    return Base(str(version), digest(root), "checkout", root, commit=state.commit)


def _open_wheel(path: Path, request: _Request) -> Base:
    try:
        name, _, _, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise RewriterError(f"{path.name} is no name of a wheel; check --source") from error
    if name != "vllm":
        raise RewriterError(f"{path.name} is a wheel of {name}, not of vllm; check --source")
    if tags != _PURE:
        raise _not_pure(f"{path.name} is not tagged py3-none-any")
    root = request.into / "wheel"
    root.mkdir()
    unpack_wheel(path, root)
    _check_root(root, path.name)
    _check_pure(root, path.name)
    version = _archive_version(_wheel_version(root, path.name), path.name, request.given)
    return Base(str(version), sha256_of(path), "wheel", root, file=path.name)


def _wheel_version(root: Path, shown: str) -> Version | None:
    """Return a wheel's version without the flavour (`+empty`) that only its metadata has."""
    infos = list(root.glob("*.dist-info/METADATA"))
    if len(infos) != 1:
        raise RewriterError(f"{shown} has {len(infos)} METADATA files, not one; get it again")
    wheel = _headers(infos[0].with_name("WHEEL"))
    if wheel.get("root-is-purelib", "true").lower() != "true":
        raise _not_pure(f"{shown} says in its WHEEL file that it is not pure")
    version = _valid(_headers(infos[0]).get("version"))
    inner = _version_of_module(root / "vllm" / "_version.py")
    return inner if version and inner and inner.public == version.public else version


def _archive_version(stated: Version | None, shown: str, given: Version | None) -> Version:
    version = stated or given
    if version is None:
        raise RewriterError(f"{shown} does not say which version it is; give it by --base-version")
    if given not in (None, version):
        raise RewriterError(
            f"{shown} says it is vLLM {version}, not {given}; leave --base-version out"
        )
    return version


def _check_root(root: Path, shown: str) -> None:
    if not (root / "vllm" / "__init__.py").is_file():
        raise RewriterError(f"{shown} has no vllm/__init__.py; give a release of vLLM")
    if (root / "ascend_runtime").exists():
        raise RewriterError(f"{shown} is edited already; give the vLLM it was made from")
    name = _headers(root / "PKG-INFO").get("name", "vllm")
    if canonicalize_name(name) != "vllm":
        raise RewriterError(f"{shown} is {name!r}, not vllm; give a release of vLLM")


def _check_pure(folder: Path, shown: str) -> None:
    files = compiled_files(folder)
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise _not_pure(f"{shown} holds compiled files ({files[0]}{more})")


def _not_pure(why: str) -> RewriterError:
    return RewriterError(
        f"{why}, so the result would not be py3-none-any; give the sdist, or a wheel built with "
        "VLLM_TARGET_DEVICE=empty"
    )


def _stated_version(root: Path) -> Version | None:
    stated = _valid(_headers(root / "PKG-INFO").get("version"))
    return stated or _version_of_module(root / "vllm" / "_version.py")


def _headers(path: Path) -> dict[str, str]:
    """Return the headers of a metadata file with lower-case names; none if there is no file."""
    if not path.is_file():
        return {}
    with os_errors("a metadata file cannot be read"):
        message = email.message_from_bytes(path.read_bytes())
    return {key.lower(): str(value) for key, value in message.items()}


def _valid(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _version_of_module(path: Path) -> Version | None:
    """Return what a `_version.py` assigns to `__version__`, without running it."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return None
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names:
                return _valid(str(node.value.value))
    return None


def _ensure_version_file(root: Path, version: Version, commit: str | None) -> None:
    """Write `vllm/_version.py` as vLLM's own build would, unless it says this version already."""
    path = root / "vllm" / "_version.py"
    if _version_of_module(path) == version:
        return
    rest = str(version).partition("!")[2] or str(version)
    rest = rest.removeprefix(".".join(map(str, version.release)))
    parts = (*version.release, *(part for part in re.split(r"[.+]", rest) if part))
    text = (
        "# written by vllm-ascend-rewriter, as setuptools-scm would\n"
        f"__version__ = version = {str(version)!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        f"__commit_id__ = commit_id = {commit_id(commit)!r}\n"
    )
    with os_errors("vllm/_version.py cannot be written", root):
        path.unlink(missing_ok=True)  # it may be a link
        path.write_bytes(text.encode())
