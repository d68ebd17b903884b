"""One pass that turns a built wheel into the bytes that are published, whoever built it and where.

The members' names, order, modes, times and compression, `Generator` and RECORD are set here; so are
the distribution's name and the files added to dist-info. A member is compressed once however many
wheels it goes into, which is why the archive is written here and not with zipfile, which has no way
to take compressed bytes. The result depends on the input and on the zlib in use, on nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from rewriter.errors import RewriterError

TAG = "py3-none-any"
#: 1980-01-01, the first day a zip file can name, for SOURCE_DATE_EPOCH.
EPOCH = 315532800
_DOS_TIME, _DOS_DATE = 0, (1 << 5) | 1
_MODE = 0o100644 << 16
_LEVEL = 6
_DEFLATED = 8
_UNIX = 3
_VERSION = 20  # of the zip format: deflate and folders
_UTF8 = 0x800


@dataclass(frozen=True)
class Packed:
    """A file as it lies in a wheel: deflated, with what the directory and RECORD say of it."""

    data: bytes
    size: int
    crc: int
    sha256: bytes

    @property
    def record(self) -> str:
        """The hash and size columns of RECORD."""
        digest = base64.urlsafe_b64encode(self.sha256).rstrip(b"=").decode()
        return f"sha256={digest},{self.size}"


def pack(data: bytes) -> Packed:
    """Deflate one file."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(data) + deflate.flush()
    return Packed(packed, len(data), zlib.crc32(data), hashlib.sha256(data).digest())


@dataclass
class Packer:
    """Compresses ahead, while something else runs; finds the result again by content."""

    _pending: dict[bytes, Future[Packed]] = field(default_factory=dict)

    def start(self, executor: Executor, files: Iterable[bytes]) -> None:
        """Begin to compress `files` in the background."""
        for data in files:
            key = hashlib.sha256(data).digest()
            if key not in self._pending:
                self._pending[key] = executor.submit(pack, data)

    def packed(self, data: bytes) -> Packed:
        """Return `data` compressed: from the background if it was begun there, else done now."""
        pending = self._pending.get(hashlib.sha256(data).digest())
        return pending.result() if pending else pack(data)


@dataclass(frozen=True)
class Built:
    """An opened wheel: its files, and those of its dist-info by their path below that folder."""

    payload: Mapping[str, Packed]
    info: Mapping[str, bytes]


def read_built(wheel: Path, expected: Mapping[str, bytes], packer: Packer) -> Built:
    """Read the wheel that the backend made and check that it holds exactly `expected`.

    Raises RewriterError if it is broken or not pure Python, or if a file is missing, new or other.
    """
    payload: dict[str, Packed] = {}
    info: dict[str, bytes] = {}
    wrong: list[str] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                folder, _, rest = member.filename.partition("/")
                if member.is_dir():
                    continue
                data = archive.read(member)
                if folder.endswith(".dist-info"):
                    info[rest] = data
                elif expected.get(member.filename) == data:
                    payload[member.filename] = packer.packed(data)
                else:
                    wrong.append(member.filename)
    except zipfile.BadZipFile as error:
        raise RewriterError(f"setuptools made a broken wheel: {error}") from None
    wrong += sorted(set(expected) - set(payload) - set(wrong))
    if wrong:
        some = ", ".join(wrong[:3]) + (" ..." if len(wrong) > 3 else "")
        raise RewriterError(f"setuptools packed {len(wrong)} files wrongly or not at all: {some}")
    if f"Tag: {TAG}\n".encode() not in info.get("WHEEL", b""):
        raise RewriterError(f"setuptools did not make a {TAG} wheel")
    return Built(payload, info)


def seal(
    built: Built,
    *,
    name: str,
    version: str,
    generator: str,
    added: Mapping[str, bytes],
    out: Path,
) -> Path:
    """Write `built` into the folder `out` as the distribution `name` `version`; return its path.

    `added` are files for dist-info. The file appears under its name only when it is whole. Raises
    OSError if it cannot be written.
    """
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = {path: data for path, data in built.info.items() if path != "RECORD"} | dict(added)
    info["METADATA"] = _renamed(info["METADATA"], {"Name": name, "Version": version})
    info["WHEEL"] = re.sub(
        rb"(?m)^Generator: .*$", f"Generator: {generator}".encode(), info["WHEEL"]
    )
    folder = f"{stem}.dist-info"
    members = dict(sorted(built.payload.items()))
    members |= {f"{folder}/{path}": pack(info[path]) for path in sorted(info)}  # last, as advised
    members[f"{folder}/RECORD"] = pack(_record(members, f"{folder}/RECORD"))
    target = out / f"{stem}-{TAG}.whl"
    _write_whole(target, archive(members))
    return target


def _renamed(metadata: bytes, fields: Mapping[str, str]) -> bytes:
    """Set header fields; the description below may hold lines that look like them."""
    head, blank, body = metadata.partition(b"\n\n")
    for key, value in fields.items():
        line = f"{key}: {value}".encode()
        head, count = re.subn(rb"(?m)^%s: .*$" % key.encode(), lambda _, line=line: line, head)  # type: ignore[misc]
        if count != 1:
            raise RewriterError(f"METADATA has {count} fields {key} instead of one")
    return head + blank + body


def _record(members: Mapping[str, Packed], own: str) -> bytes:
    lines = [f"{_quoted(path)},{packed.record}\n" for path, packed in members.items()]
    return "".join([*lines, f"{own},,\n"]).encode()


def _quoted(path: str) -> str:
    """Quote a path for RECORD, which is CSV: vLLM's tuning tables have commas in their names."""
    quoted = path.replace('"', '""')
    return f'"{quoted}"' if re.search(r'[",\r\n]', path) else path


def archive(members: Mapping[str, Packed]) -> bytes:
    """Return a zip file of `members` in their order, byte for byte as zipfile would write it."""
    parts: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for path, packed in members.items():
        name = path.encode()
        flags = 0 if path.isascii() else _UTF8
        common = (flags, _DEFLATED, _DOS_TIME, _DOS_DATE, packed.crc, len(packed.data), packed.size)
        local = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", _VERSION, *common, len(name), 0) + name
        made_by = (_VERSION, _UNIX, _VERSION, 0)
        lengths = (len(name), 0, 0, 0, 0, _MODE, offset)  # extra, comment, disk, internal: none
        directory.append(
            struct.pack("<4sBBBBHHHHLLLHHHHHLL", b"PK\1\2", *made_by, *common, *lengths) + name
        )
        parts += [local, packed.data]
        offset += len(local) + len(packed.data)
    index = b"".join(directory)
    count = len(members)
    if count > 0xFFFE or offset + len(index) > 0xFFFFFFFE:
        raise RewriterError("the wheel is too large for a plain zip file (65,534 files, 4 GiB)")
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, len(index), offset, 0)
    return b"".join([*parts, index, end])


def _write_whole(target: Path, data: bytes) -> None:
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a full disk may show only now
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
