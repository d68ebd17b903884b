"""Unpacking archives that nobody vouches for, and copying trees; nothing leaves the target."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from rewriter.cache import os_errors
from rewriter.errors import RewriterError

MAX_BYTES = 2 << 30
MAX_MEMBERS = 200_000
_CHUNK = 1 << 20
_DAMAGED = "is damaged or cut short; get it again"
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    NotImplementedError,
)
_COMPILED = re.compile(r"\.(so|pyd|dylib|dll)(\.\d+)*$", re.IGNORECASE)
# Control characters, backslashes, and what Python makes of bytes that are not UTF-8.
_ODD = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
# What a wheel is made from, beside the files at the top. Kernels, tests and documents are more than
# half of a release, and trees hold build folders and virtual environments, too.
_NEEDED = {"vllm", "requirements"}


def unpack_sdist(archive: Path, into: Path) -> Path:
    """Unpack what a wheel needs of an sdist below the folder `into`; return its one top folder.

    That is `vllm/`, `requirements/`, the egg-info and the files at the top. Raises RewriterError
    for an archive that is damaged, holds (anywhere) anything but files, folders and links that stay
    inside, names a place outside or one place twice, is absurdly large, or has not exactly one top
    folder.
    """
    if not hasattr(tarfile, "data_filter"):
        raise RewriterError("this Python unpacks archives unsafely; use Python 3.11.4 or later")
    name = archive.name
    plain = into / ".sdist.tar"
    try:
        _gunzip(archive, plain)
        with tarfile.open(plain, "r:") as tar:
            members = _checked_members(name, tar)
            root = into / next(iter(members))[0]
            needed = [m for place, m in members.items() if is_needed(place[1:], m.isdir())]
            with os_errors(f"{name} cannot be unpacked", into):
                tar.extractall(into, needed, filter="data")
    except tarfile.FilterError as error:
        raise _refusal(name, "holds a place outside of it") from error
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise RewriterError(f"{name} {_DAMAGED}") from error
    finally:
        plain.unlink(missing_ok=True)
    if not root.is_dir():
        raise _refusal(name, "has no top folder")
    _check_links(name, root)
    return root


def unpack_wheel(archive: Path, into: Path) -> None:
    """Unpack a wheel, whole, into the existing folder `into`.

    Raises RewriterError for one that is damaged, encrypted or absurdly large, holds a link, or
    names a place outside or one place twice.
    """
    name = archive.name
    try:
        with os_errors(f"{name} cannot be unpacked", into), zipfile.ZipFile(archive) as wheel:
            infos = wheel.infolist()
            check_totals(name, len(infos), sum(info.file_size for info in infos))
            files = [_zip_parts(name, info) for info in infos if not info.is_dir()]
            if len(set(files)) != len(files):
                raise _refusal(name, "holds a file twice")
            _check_folders(name, set(files))
            for info in infos:
                _extract_zip_member(wheel, info, into)
    except _ZIP_ERRORS as error:
        raise RewriterError(f"{name} {_DAMAGED}") from error


def copy_tree(source: Path, into: Path) -> None:
    """Copy what a wheel needs of a source tree into the existing folder `into`.

    That is the same as in `unpack_sdist`, but for byte code. Links inside the tree stay links.
    Raises RewriterError for a link that leaves the tree, anything that is no file, folder or link,
    or an absurdly large tree.
    """
    count = size = 0
    pending = [source]
    while pending:
        folder = pending.pop()
        with os_errors(f"{source} cannot be read"):
            for path in sorted(folder.iterdir()):
                is_folder = path.is_dir() and not path.is_symlink()
                if not is_needed(path.relative_to(source).parts, is_folder) or _is_bytecode(path):
                    continue
                if is_folder:
                    pending.append(path)
                count, size = count + 1, size + path.lstat().st_size
                check_totals(str(source), count, size)
                copy_one(source, path, into)
    check_copied_links(source, into)


def copy_one(source: Path, path: Path, into: Path) -> None:
    """Copy one file, link or folder (itself only) of the tree `source` to the same place in `into`.

    Raises RewriterError for a link that leaves the tree, for devices, sockets and pipes, and for a
    name that is not UTF-8 or has control characters or backslashes.
    """
    place = path.relative_to(source)
    if is_odd(str(place)):
        raise RewriterError(
            f"{printable(source)} holds a file with the odd name {_shown(place.as_posix())}; "
            "rename or remove it"
        )
    target = into / place
    with os_errors(f"{path} cannot be copied", into):
        mode = path.lstat().st_mode
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(mode):
            target.symlink_to(_relative_target(source, path))
        elif stat.S_ISDIR(mode):
            target.mkdir(exist_ok=True)
        elif stat.S_ISREG(mode):
            shutil.copyfile(path, target)
            target.chmod(0o755 if mode & 0o111 else 0o644)
        else:
            raise _refusal(str(source), f"holds {place}, which is no file, folder or link")


def check_copied_links(source: Path, into: Path) -> None:
    """Look at the links of the tree `source` once more in its copy, where less may be there.

    Raises RewriterError for one that leads nowhere; at the top, where nobody needs it, it goes.
    """
    for path in into.rglob("*"):
        if path.is_symlink() and not path.exists():
            place = path.relative_to(into)
            if len(place.parts) == 1:
                path.unlink()
                continue
            why = "a link to a file that is not taken along"
            if not (source / place).exists():
                why = "a link to nothing"
            raise RewriterError(f"{source / place} is {why}; mend or remove it")


def is_odd(name: str) -> bool:
    """Whether a name is not UTF-8, or cannot be shown on one line, or means a path elsewhere."""
    return bool(_ODD.search(name))


def printable(path: Path) -> str:
    """Return a path as it is, or quoted if it is not safe to print."""
    return ascii(str(path)) if is_odd(str(path)) else str(path)


def is_needed(place: tuple[str, ...], is_folder: bool) -> bool:
    """Whether a place in a source tree is among what a wheel is made from."""
    if len(place) < 2 and not is_folder:
        return True
    return not place or place[0] in _NEEDED or place[0].endswith(".egg-info")


def check_totals(name: str, count: int, size: int) -> None:
    """Raise RewriterError if a source has absurdly many or absurdly large files."""
    if count > MAX_MEMBERS:
        raise _refusal(name, f"holds more than {MAX_MEMBERS} files")
    if size > MAX_BYTES:
        raise _refusal(name, f"is larger than {MAX_BYTES} bytes when unpacked")


def compiled_files(root: Path) -> list[str]:
    """Return the compiled extension modules and libraries below a folder, sorted."""
    files = (path for path in root.rglob("*") if _COMPILED.search(path.name))
    return sorted(path.relative_to(root).as_posix() for path in files)


def _refusal(name: str, why: str) -> RewriterError:
    return RewriterError(f"{name} {why}; it is refused, use a genuine vLLM release or checkout")


def _gunzip(archive: Path, plain: Path) -> None:
    """Decompress in one go, so that the checksum at the very end is looked at first."""
    size = 0
    try:
        with (
            os_errors(f"{archive.name} cannot be unpacked", plain.parent),
            gzip.open(archive) as packed,
            plain.open("wb") as out,
        ):
            while chunk := _read(packed):
                size += len(chunk)
                check_totals(archive.name, 0, size)
                out.write(chunk)
    except (EOFError, zlib.error) as error:
        raise RewriterError(f"{archive.name} {_DAMAGED}") from error


def _read(packed: gzip.GzipFile) -> bytes:
    try:
        return packed.read(_CHUNK)
    except gzip.BadGzipFile as error:  # an OSError, but it says nothing about the disk
        raise EOFError(str(error)) from error


def _checked_members(name: str, tar: tarfile.TarFile) -> dict[tuple[str, ...], tarfile.TarInfo]:
    """Return the members by their places; two folders in one place are one."""
    members: dict[tuple[str, ...], tarfile.TarInfo] = {}
    count = size = 0
    for member in tar:
        count, size = count + 1, size + member.size
        check_totals(name, count, size)
        place = _parts(name, member.name)
        _check_kind(name, member, place)
        if place in members and not (member.isdir() and members[place].isdir()):
            raise _refusal(name, f"holds {_shown(member.name)} twice")
        members[place] = member
    tops = {place[0] for place in members}
    if len(tops) != 1:
        raise _refusal(name, f"has {len(tops)} top folders; an sdist has exactly one")
    _check_folders(name, {place for place, member in members.items() if not member.isdir()})
    return members


def _check_kind(name: str, member: tarfile.TarInfo, place: tuple[str, ...]) -> None:
    plain = member.isreg() and not member.issparse()
    if not (plain or member.isdir() or member.issym() or member.islnk()):
        raise _refusal(name, f"holds {_shown(member.name)}, which is no file, folder or link")
    if member.issym() or member.islnk():
        # A symbolic link counts from its own folder, a hard link from the top of the archive.
        start = place[:-1] if member.issym() else ()
        if not _stays_inside(start, member.linkname, place[0]):
            raise _refusal(name, f"holds {_shown(member.name)}, a link out of its tree")


def _stays_inside(start: tuple[str, ...], link: str, top: str) -> bool:
    """Whether following `link` step by step from `start` never leaves the folder `top`."""
    path = PurePosixPath(link)
    if path.is_absolute() or "\\" in link:
        return False
    here = list(start)
    for part in path.parts:
        if part != "..":
            here.append(part)
        elif len(here) > 1:
            here.pop()
        else:
            return False
    return here[:1] == [top]


def _parts(archive: str, name: str) -> tuple[str, ...]:
    """Split a member's name into its parts; names that could lead elsewhere are refused."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise _refusal(archive, f"holds {_shown(name)}, a place outside of it")
    if not parts or _ODD.search(name):
        raise _refusal(archive, f"holds a file with the odd name {_shown(name)}")
    return parts


def _shown(name: str) -> str:
    """Return a name from an archive in a form that is safe to print on one line."""
    return ascii(name if len(name) <= 200 else name[:200] + "...")


def _check_folders(archive: str, files: set[tuple[str, ...]]) -> None:
    """Refuse a file or link that another member uses as a folder."""
    for folder in {place[:-1] for place in files}:
        for length in range(1, len(folder) + 1):
            if folder[:length] in files:
                raise _refusal(archive, f"uses {_shown('/'.join(folder[:length]))} as a folder")


def _check_links(name: str, root: Path) -> None:
    """Look at every link once more where it lies: links through links show only there."""
    inside = root.resolve()
    for path in root.rglob("*"):
        if path.is_symlink():
            place = _shown(path.relative_to(root).as_posix())
            try:
                target = path.resolve(strict=True)
            except (OSError, RuntimeError) as error:
                raise _refusal(name, f"holds {place}, a link to nothing") from error
            if not target.is_relative_to(inside):
                raise _refusal(name, f"holds {place}, a link out of its tree")


def _zip_parts(name: str, info: zipfile.ZipInfo) -> tuple[str, ...]:
    parts = _parts(name, info.filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refusal(name, f"holds {_shown(info.filename)}, which is no file or folder")
    if info.flag_bits & 1:
        raise _refusal(name, "is encrypted")
    return parts


def _extract_zip_member(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, into: Path) -> None:
    target = into.joinpath(*_zip_parts(Path(wheel.filename or "").name, info))
    with os_errors(f"{info.filename} cannot be unpacked", into):
        if info.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(info) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, _CHUNK)


def _is_bytecode(path: Path) -> bool:
    return path.name == "__pycache__" or path.suffix == ".pyc"


def _relative_target(source: Path, link: Path) -> str:
    """Return where a link inside `source` leads, relative to the link's folder."""
    inside = source.resolve()
    place = link.relative_to(source).as_posix()
    try:
        target = link.resolve()
    except RuntimeError as error:
        raise _refusal(str(source), f"holds {_shown(place)}, a link to itself") from error
    if not target.is_relative_to(inside):
        raise _refusal(str(source), f"holds {_shown(place)}, a link out of its tree")
    here = PurePosixPath(place).parent.parts
    return str(PurePosixPath(*[".."] * len(here), *target.relative_to(inside).parts)) or "."
