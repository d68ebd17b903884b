"""Building: repeatable bytes, odd bases, and failures that leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from rewriter import seal
from rewriter.errors import RewriterError
from rewriter.metadata import extras_of, read_metadata, requirements_of
from rewriter.project import wheel_version
from rewriter.rewrite import Rewritten

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import os, resource, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}, {root!r} + "/tests"]
os.umask({umask})
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from conftest import build, SHA256
from rewriter.base import Base
from rewriter.errors import RewriterError
base = Base("0.18.0", SHA256, "sdist", Path({base!r}), "vllm-0.18.0.tar.gz")
try:
    build(base, Path({work!r}))
except RewriterError as error:
    sys.exit(f"error: {{error}}")
"""


def script(base: Path, work: Path, umask: int = 0o022, limit: int = 0) -> list[str]:
    tests = str(Path(__file__).parent)
    text = _SCRIPT.format(
        root=str(ROOT), tests=tests, base=str(base), work=str(work), umask=umask, limit=limit
    )
    return [sys.executable, "-c", text]


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_another_folder_zone_locale_umask_and_mtimes_give_the_same_bytes(wheels, tmp_path):
    other = tmp_path / "deeper" / "other name"
    for name in ("vllm", "requirements"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(wheels.base.root / name, other / name, ignore=ignored, copy_function=_copy)
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        _copy(wheels.base.root / name, other / name)
    environment = {
        **os.environ,
        "TZ": "Asia/Kolkata",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1700000000",
        "SETUPTOOLS_SCM_PRETEND_VERSION": "9",
    }
    command = script(other, tmp_path / "work", umask=0o077)
    subprocess.run(command, check=True, env=environment, cwd=other)
    assert digests(tmp_path / "work/out") == digests(wheels.renamed.parent)


def _copy(source: Path, target: Path) -> None:
    """Copy the bytes only: other times, other modes."""
    shutil.copyfile(source, target)
    os.utime(target, (1e9, 1e9))
    Path(target).chmod(0o600)


@pytest.mark.parametrize("stage", ["assemble", "backend"])
def test_full_disk_is_one_line_and_leaves_nothing(small_base, tmp_path, stage):
    largest = max(path.stat().st_size for path in (ROOT / "ascend_runtime").rglob("*.py"))
    limit = 150 if stage == "assemble" else largest + 2_000
    command = script(small_base.root, tmp_path / "work", limit=limit)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert f"File too large: {tmp_path / 'work/scratch'}; free space there, or set" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "work/scratch/build.log").exists() == (stage == "backend")
    assert list((tmp_path / "work/out").iterdir()) == []


def test_disk_full_at_the_second_wheel_takes_the_first_away(
    small_base, tmp_path, builder, monkeypatch
):
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(seal.os, "fsync", full)
    says = rf"No space left on device: {tmp_path}/work/out; free space there, or .* --out"
    with pytest.raises(RewriterError, match=says):
        builder(small_base, tmp_path / "work")
    assert list((tmp_path / "work/out").iterdir()) == []


def test_ctrl_c_ends_the_backend_too(wheels, tmp_path):
    work = tmp_path / "work"
    process = subprocess.Popen(script(wheels.base.root, work), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (work / "scratch/tree/build").exists():  # the backend has begun to copy
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in stderr
    assert list((work / "out").iterdir()) == []
    assert _running_in(work) == []


def _running_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in entry.read_bytes():
                found.append(entry.parent.name)
    return found


def test_failing_backend_is_one_line(small_base, tmp_path, builder):
    (small_base.root / "pyproject.toml").write_text(
        (small_base.root / "pyproject.toml").read_text().replace("vllm.cli:main", "not a reference")
    )
    with pytest.raises(RewriterError, match=r"building the wheel failed: \S.*") as caught:
        builder(small_base, tmp_path / "work")
    assert "\n" not in str(caught.value)


def test_small_tree_has_its_odd_files(small_base, tmp_path, builder):
    pair = builder(small_base, tmp_path / "work")
    with zipfile.ZipFile(pair.drop_in) as archive:
        held = {name for name in archive.namelist() if name.startswith("vllm/")}
        meta = archive.read("vllm-0.18.0+npu.0.1.0.dist-info/METADATA").decode()
    assert held == {
        "vllm/.hidden/inner/deep.txt",
        "vllm/__init__.py",
        "vllm/_version.py",
        "vllm/cli.py",
        'vllm/configs/E=8,N=64,name="x".json',
        "vllm/flash/.gitkeep",
        "vllm/logger.py",
        "vllm/templates/a.jinja",
    }
    assert "\nName: not a header\nVersion: 9\n" in meta  # the README is no header


def test_no_label(small_base, tmp_path, builder):
    pair = builder(small_base, tmp_path / "work", label=False)
    assert [p.name for p in pair] == [
        "vllm_ascend_patched-0.18.0-py3-none-any.whl",
        "vllm-0.18.0-py3-none-any.whl",
    ]


@pytest.mark.parametrize(
    ("base", "project", "version"),
    [
        ("0.18.0", "0.1.0", "0.18.0+npu.0.1.0"),
        ("0.18.0+abc", "0.1.0", "0.18.0+abc.npu.0.1.0"),
        ("0.18.0+empty", "0.1.0", "0.18.0+empty.npu.0.1.0"),
        ("0.18.0+cpu", "0.1.0", "0.18.0+npu.0.1.0"),
        ("0.18.1.dev3+g12ab.tpu7", "0.2.0.dev1", "0.18.1.dev3+g12ab.npu.0.2.0.dev1"),
        ("0.18.0rc1", "1.0+x", "0.18.0rc1+npu.1.0.x"),
    ],
)
def test_versions(base, project, version):
    assert wheel_version(base, project) == version


def test_bad_version_is_an_error():
    with pytest.raises(RewriterError, match=r"Invalid version: 'main'.*--base-version"):
        wheel_version("main", "0.1.0")


@pytest.mark.parametrize("version", ["0.18.0+abc", "0.18.1.dev3+g1234567"])
def test_version_module_is_written_where_it_does_not_fit(small_base, tmp_path, builder, version):
    base = replace(small_base, version=version, commit="0123456789abcdef")
    (base.root / "vllm/_version.py").write_text("__version__ = 'dev'\n")
    pair = builder(base, tmp_path / "work")
    names: dict[str, object] = {}
    with zipfile.ZipFile(pair.renamed) as archive:
        exec(archive.read("vllm/_version.py"), names)
    assert names["__version__"] == version.partition("+")[0]
    assert names["__version_tuple__"][:2] == (0, 18)
    assert names["commit_id"] == "g012345678"


def test_wheel_as_a_base_reads_its_dist_info(stand, tmp_path, builder):
    """Built from our own drop-in wheel, it has the same requirements, extras and entry points."""
    root = tmp_path / "unpacked"
    with zipfile.ZipFile(stand.first.drop_in) as archive:
        archive.extractall(root)
    base = replace(stand.first.base, origin="wheel", root=root, version="0.18.0+empty")
    metadata = read_metadata(base)
    assert metadata.requirements == ("regex", 'six>=1.16; python_version > "3.11"')
    assert metadata.extras["bench"] == ("six>=1",)
    assert metadata.extras["old"] == ()
    assert metadata.scripts == {"vllm": "vllm.cli:main"}
    assert metadata.entry_points == {"vllm.general_plugins": {"small": "vllm.cli:main"}}
    assert metadata.notice and metadata.licence == b"Apache License\n"
    pair = builder(base, tmp_path / "work")
    assert pair.renamed.name == "vllm_ascend_patched-0.18.0+empty.npu.0.1.0-py3-none-any.whl"


def test_wheel_for_cuda_loses_its_pins(stand, tmp_path):
    root = tmp_path / "unpacked"
    with zipfile.ZipFile(stand.first.drop_in) as archive:
        archive.extractall(root)
    (path,) = root.glob("*.dist-info/METADATA")
    head, _, body = path.read_text().partition("\n\n")
    head += "\nRequires-Dist: torch==2.10.0\nRequires-Dist: triton\nRequires-Dist: nvidia-nccl-cu12"
    path.write_text(f"{head}\n\n{body}")
    metadata = read_metadata(replace(stand.first.base, origin="wheel", root=root))
    assert metadata.requirements == ("regex", 'six>=1.16; python_version > "3.11"')


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("setup.py", "setup(extras_require=all_of_them())", "setup.py:1: .*not a literal"),
        ("setup.py", "setup(name='x')", "setup.py: no setup"),
        ("setup.py", "setup(", "setup.py:1: not Python"),
        ("requirements/common.txt", "a b c", r"common.txt:1: 'a b c' is not a requirement"),
        ("requirements/common.txt", "-r more.txt", "common.txt:1: .*not followed"),
        ("requirements/common.txt", None, "no readable requirements/common.txt"),
        ("pyproject.toml", "[", "pyproject.toml of the base"),
        ("LICENSE", None, "no LICENSE"),
        ("vllm/_C.abi3.so", "elf", "vllm/_C.abi3.so is compiled"),
        ("vllm/__init__.py", None, "no vllm/__init__.py"),
        ("requirements/common.txt", "", "common.txt of the base names no requirement"),
        ("requirements/common.txt", "# six\n--x\n", "common.txt of the base names no requirement"),
        ("pyproject.toml", "[project]\nname = 'vllm'\n", "pyproject.toml of .* no requirement"),
        *(
            ("pyproject.toml", f"[project]\n{line}\n", rf"project\.{line.split(' ')[0]} is not a")
            for line in (
                "name = 3",
                "description = []",
                "readme = {file = 3}",
                "requires-python = 3.10",
                "classifiers = 'x'",
                "authors = ['x']",
                "urls = ['x']",
                "dynamic = 'dependencies'",
                "dependencies = [3]",
                "optional-dependencies = {x = 'y'}",
                "scripts = {x = 3}",
                "entry-points = {x = 'y'}",
            )
        ),
        ("setup.py", "setup(extras_require={'a': [3]})", "setup.py:1: 3 is not a requirement"),
    ],
)
def test_bad_base_is_one_line(small_base, tmp_path, builder, path, text, message):
    target = small_base.root / path
    if text is None:
        target.unlink()
    else:
        target.write_text(text)
    rewritten = Rewritten((), {}, {}, ())
    with pytest.raises(RewriterError, match=message) as caught:
        builder(small_base, tmp_path / "work", rewritten=rewritten)
    assert "\n" not in str(caught.value)


def test_links_are_followed_inside_the_tree_only(small_base, tmp_path, builder):
    (small_base.root / "vllm/inside.txt").symlink_to("../LICENSE")
    pair = builder(small_base, tmp_path / "inside")
    with zipfile.ZipFile(pair.renamed) as archive:
        assert archive.read("vllm/inside.txt") == b"Apache License\n"
    (tmp_path / "secret").write_text("key")
    link = small_base.root / "vllm/link.py"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(RewriterError, match=r"vllm/link.py is a link out of the source tree"):
        builder(small_base, tmp_path / "outside")
    link.unlink()
    (small_base.root / "vllm/again").symlink_to("configs")
    with pytest.raises(RewriterError, match=r"vllm/again is a link to a folder"):
        builder(small_base, tmp_path / "folder")


def test_the_files_of_the_base_stay_as_they_are(small_base, tmp_path, builder):
    """The tree that setuptools packs is made of links to them."""
    for mode, name in ((0o444, "vllm/cli.py"), (0o755, "vllm/.hidden/inner/deep.txt")):
        (small_base.root / name).chmod(mode)
    (small_base.root / "vllm/inside.txt").symlink_to("../LICENSE")

    def state() -> dict[str, tuple[object, ...]]:
        files = [path for path in small_base.root.rglob("*") if path.is_file()]
        stats = [(path, path.stat()) for path in files]
        return {
            str(path): (path.read_bytes(), at.st_mode, at.st_mtime_ns, at.st_ino)
            for path, at in stats
        }

    before = state()
    builder(small_base, tmp_path / "work")
    linked = tmp_path / "work/scratch/tree/vllm/cli.py"
    assert linked.samefile(small_base.root / "vllm/cli.py")  # else this test shows nothing
    assert state() == before


def test_odd_file_is_refused(small_base, tmp_path, builder):
    os.mkfifo(small_base.root / "vllm/pipe")
    with pytest.raises(RewriterError, match=r"vllm/pipe is not a plain file"):
        builder(small_base, tmp_path / "work")


def test_a_backend_that_drops_a_file_is_caught(tmp_path):
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/a.py", "1")
        archive.writestr("x-1.dist-info/WHEEL", "Tag: py3-none-any\n")
    expected = {"vllm/a.py": b"1", "vllm/b.jinja": b"2"}
    with pytest.raises(RewriterError, match=r"1 files wrongly or not at all: vllm/b\.jinja"):
        seal.read_built(wheel, expected, seal.Packer())


def test_requirements_keep_markers_and_lose_comments():
    text = (
        "--extra-index-url x\nfoo[bar]>=1; python_version > '3' # c\n\n  # d\nbaz --hash=sha256:0\n"
    )
    assert requirements_of(text, "f") == ("foo[bar]>=1; python_version > '3'", "baz")


def test_extras_are_found_without_running_setup():
    source = "raise SystemExit\nimport setuptools\nsetuptools.setup(extras_require={'a': ['b']})"
    assert extras_of(source) == {"a": ("b",)}


def test_manifest_is_plain_json(small_base, tmp_path, builder):
    pair = builder(small_base, tmp_path / "work")
    with zipfile.ZipFile(pair.renamed) as archive:
        manifest = json.loads(archive.read("ascend_runtime/manifest.json"))
    assert manifest["schema"] == 1 and manifest["version"] == "0.18.0+npu.0.1.0"
