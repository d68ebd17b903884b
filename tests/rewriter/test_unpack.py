"""Archives and trees that must not be trusted."""

from __future__ import annotations

import errno
import gzip
import io
import os
import resource
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from rewriter import unpack
from rewriter.errors import RewriterError

INIT = b"\xef\xbb\xbfx = 1\r\ny = 2"  # a BOM, CRLF and no last newline must all survive


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def make_tar(path: Path, *extra: tarfile.TarInfo, top: str = "vllm-9.9.9") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"PKG-INFO": b"Version: 9.9.9\n", "vllm/__init__.py": INIT}.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info, io.BytesIO(b"." * info.size))
    return path


def refused(archive: Path, into: Path) -> str:
    into.mkdir()
    unpacker = unpack.unpack_wheel if archive.suffix == ".whl" else unpack.unpack_sdist
    with pytest.raises(RewriterError) as caught:
        unpacker(archive, into)
    message = str(caught.value)
    assert "\n" not in message and archive.name in message
    return message


def test_bytes_come_out_as_they_went_in(tmp_path):
    sdist = make_tar(
        tmp_path / "a.tar.gz", member("vllm-9.9.9/csrc/a.cu"), member("vllm-9.9.9/vllm/é.txt")
    )
    root = unpack.unpack_sdist(sdist, tmp_path)
    assert root == tmp_path / "vllm-9.9.9"
    assert (root / "vllm/__init__.py").read_bytes() == INIT
    assert sorted(path.name for path in root.iterdir()) == ["PKG-INFO", "vllm"]
    assert (root / "vllm/é.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "vllm-9.9.9"]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (member("vllm-9.9.9/../../evil.py"), "a place outside"),
        (member("../evil.py"), "a place outside"),
        (member("/tmp/evil.py"), "a place outside"),
        (member("vllm-9.9.9/vllm/a\\..\\b"), "odd name"),
        (member("vllm-9.9.9/vllm/a\nb"), "odd name"),
        (member("vllm-9.9.9/vllm/b\udcff.py"), r"odd name 'vllm-9.9.9/vllm/b\udcff.py'"),
        (member("vllm-9.9.9/docs/b\udcff.py"), r"odd name 'vllm-9.9.9/docs/b\udcff.py'"),
        (member("vllm-9.9.9/vllm/out", tarfile.SYMTYPE, "../../../etc"), "out of its tree"),
        (member("vllm-9.9.9/vllm/out", tarfile.SYMTYPE, "/etc/passwd"), "out of its tree"),
        (member("vllm-9.9.9/csrc/out", tarfile.SYMTYPE, "../../etc"), "out of its tree"),
        (member("vllm-9.9.9", tarfile.SYMTYPE, "vllm-9.9.9"), "as a folder"),
        (member("vllm-9.9.9/vllm/out", tarfile.LNKTYPE, "../etc/passwd"), "out of its tree"),
        (member("vllm-9.9.9/vllm/out", tarfile.LNKTYPE, "/etc/passwd"), "out of its tree"),
        (member("vllm-9.9.9/vllm/none", tarfile.SYMTYPE, "missing.py"), "a link to nothing"),
        (member("vllm-9.9.9/vllm/dev", tarfile.CHRTYPE), "no file, folder or link"),
        (member("vllm-9.9.9/vllm/pipe", tarfile.FIFOTYPE), "no file, folder or link"),
        (member("vllm-9.9.9/vllm/__init__.py"), "twice"),
        (member("vllm-9.9.9/./vllm//__init__.py"), "twice"),
        (member("vllm-9.9.9/vllm/__init__.py/x"), "as a folder"),
        (member("another/file"), "2 top folders"),
    ],
)
def test_hostile_members_are_refused(tmp_path, extra, says):
    assert says in refused(make_tar(tmp_path / "evil.tar.gz", extra), tmp_path / "into")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"evil.tar.gz", "into"}  # nothing beside the target
    assert not list((tmp_path / "into").rglob("evil.py"))


def test_links_through_links_do_not_leave(tmp_path):
    # Step by step, `b` seems to end at the top; through `d` it ends above it.
    top = "vllm-9.9.9/vllm"
    sdist = make_tar(
        tmp_path / "evil.tar.gz",
        member(f"{top}/b", tarfile.SYMTYPE, "p/q/d/../.."),
        member(f"{top}/p/q/d", tarfile.SYMTYPE, "../../.."),
    )
    refused(sdist, tmp_path / "into")


def test_links_inside_are_kept(tmp_path):
    link = member("vllm-9.9.9/vllm/a.py", tarfile.SYMTYPE, "../vllm/__init__.py")
    root = unpack.unpack_sdist(make_tar(tmp_path / "a.tar.gz", link), tmp_path)
    assert (root / "vllm/a.py").read_bytes() == INIT


def test_every_truncation_is_noticed(tmp_path):
    whole = make_tar(tmp_path / "whole.tar.gz").read_bytes()
    for size in {0, 1, 10, len(whole) // 2, len(whole) - 8, len(whole) - 1}:
        short = tmp_path / f"short{size}.tar.gz"
        short.write_bytes(whole[:size])
        assert "damaged or cut short" in refused(short, tmp_path / f"into{size}")


def test_other_damage_is_noticed(tmp_path):
    whole = bytearray(make_tar(tmp_path / "whole.tar.gz").read_bytes())
    whole[-6] ^= 1  # the checksum
    contents = {
        "crc": bytes(whole),
        "zip": b"PK\x03\x04",
        "html": b"<html>404</html>",
        "inner": gzip.compress(b"no tar" * 1000),
        "cut": gzip.compress(gzip.decompress(make_tar(tmp_path / "x.tar.gz").read_bytes())[:700]),
    }
    for name, content in contents.items():
        bad = tmp_path / f"{name}.tar.gz"
        bad.write_bytes(content)
        assert "damaged" in refused(bad, tmp_path / f"into-{name}"), name


def test_size_limits(tmp_path, monkeypatch):
    sdist = make_tar(tmp_path / "big.tar.gz")
    monkeypatch.setattr(unpack, "MAX_BYTES", 5000)
    assert "larger than 5000 bytes" in refused(sdist, tmp_path / "a")
    monkeypatch.setattr(unpack, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 1)
    assert "more than 1 files" in refused(sdist, tmp_path / "b")


def test_no_space_is_no_damage(tmp_path):
    with pytest.raises(RewriterError, match="cannot be unpacked: No such file or directory"):
        unpack.unpack_sdist(make_tar(tmp_path / "a.tar.gz"), tmp_path / "missing")


def make_wheel(path: Path, *extra: zipfile.ZipInfo | str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("vllm/__init__.py", INIT)
        for info in extra:
            wheel.writestr(info, b"content " * 99)
    return path


def test_wheel_is_unpacked_whole(tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    unpack.unpack_wheel(make_wheel(tmp_path / "a.whl", "b-1.dist-info/RECORD", "vllm/d/"), into)
    assert (into / "vllm/__init__.py").read_bytes() == INIT
    assert (into / "b-1.dist-info/RECORD").is_file()


def symlink_info() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("vllm/link")
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("../evil.py", "a place outside"),
        ("vllm/../../evil.py", "a place outside"),
        ("/evil.py", "a place outside"),
        (symlink_info(), "no file or folder"),
        ("vllm/__init__.py/x", "as a folder"),
    ],
)
def test_hostile_wheels_are_refused(tmp_path, extra, says):
    assert says in refused(make_wheel(tmp_path / "evil.whl", extra), tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_wheel_with_one_name_twice(tmp_path):
    assert "twice" in refused(make_wheel(tmp_path / "a.whl", "vllm/__init__.py"), tmp_path / "in")


def test_damaged_wheels(tmp_path):
    whole = make_wheel(tmp_path / "a.whl", "vllm/a.py").read_bytes()
    flipped = bytearray(whole)
    flipped[45 + len("vllm/__init__.py")] ^= 0xFF
    for name, content in {"cut": whole[:-30], "none": b"", "flip": bytes(flipped)}.items():
        bad = tmp_path / f"{name}.whl"
        bad.write_bytes(content)
        assert "damaged" in refused(bad, tmp_path / f"in-{name}"), name


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("vllm/__init__.py", "vllm/sub/a.py", "requirements/common.txt", "setup.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(INIT)
    return root


def copied(tree: Path) -> dict[str, bytes]:
    into = tree.parent / "into"
    into.mkdir()
    unpack.copy_tree(tree, into)
    return {
        path.relative_to(into).as_posix(): path.read_bytes()
        for path in into.rglob("*")
        if path.is_file()
    }


def test_tree_is_copied_without_clutter(tree):
    for name in ("vllm/__pycache__/a.pyc", "vllm/b.pyc", ".venv/x.py", "build/x.py", "csrc/x.cu"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"")
    (tree / ".venv/python").symlink_to("/usr/bin/python3")
    (tree / "vllm/same.py").symlink_to(tree / "vllm/sub/a.py")
    (tree / "vllm/folder").symlink_to("sub")
    assert sorted(copied(tree)) == [
        "requirements/common.txt",
        "setup.py",
        "vllm/__init__.py",
        "vllm/same.py",
        "vllm/sub/a.py",
    ]
    # The links of the copy lead into the copy, however they were written.
    copy = tree.parent / "into"
    assert (copy / "vllm/same.py").resolve() == copy / "vllm/sub/a.py"
    assert (copy / "vllm/folder").resolve() == copy / "vllm/sub"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside.py", "../.."])
def test_tree_with_a_link_out_is_refused(tree, target):
    (tree.parent / "outside.py").write_bytes(b"")
    (tree / "vllm/link").symlink_to(target)
    with pytest.raises(RewriterError, match=r"'vllm/link', a link out of its tree"):
        copied(tree)


def test_tree_with_a_pipe_is_refused(tree):
    os.mkfifo(tree / "vllm/pipe")
    with pytest.raises(RewriterError, match="vllm/pipe, which is no file, folder or link"):
        copied(tree)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_not_blamed_on_the_source(tree, monkeypatch, number):
    def full(source, target):
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(unpack.shutil, "copyfile", full)
    with pytest.raises(RewriterError) as caught:
        copied(tree)
    message = str(caught.value)
    assert message.endswith(
        f"cannot be copied: {os.strerror(number)}: {tree.parent / 'into'}; "
        "free space there, or set VLLM_ASCEND_CACHE to a folder on another disk"
    )


def test_a_full_disk_while_unpacking(tmp_path):
    sdist = make_tar(tmp_path / "a.tar.gz")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(RewriterError, match=rf"too large: {tmp_path}; free space there"):
            unpack.unpack_sdist(sdist, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_compiled_files(tree):
    for name in ("_C.abi3.so", "sub/lib.so.1", "sub/also.py", "so.txt"):
        (tree / "vllm" / name).write_bytes(b"")
    assert unpack.compiled_files(tree) == ["vllm/_C.abi3.so", "vllm/sub/lib.so.1"]
