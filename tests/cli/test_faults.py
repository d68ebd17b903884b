"""Bad input and a machine at fault: one clear line, the right status, nothing half-written."""

from __future__ import annotations

import ast
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from cli_kit import SCRIPT, Kit, error_line, litter


def broken(kit: Kit) -> None:
    (kit.tree / "vllm/answer.py").write_text("def answer():\n    return 3\n")


def test_failed_edit_builds_nothing(kit: Kit) -> None:
    broken(kit)
    done = kit.run("--out", kit.out)
    assert done.returncode == 1
    assert "drifted" in done.stdout
    assert not kit.out.exists()


def test_failed_edit_leaves_an_older_build_alone(kit: Kit) -> None:
    kit.build()
    before = {p: p.read_bytes() for p in kit.out.rglob("*") if p.is_file()}
    broken(kit)
    assert kit.run("--out", kit.out).returncode == 1
    assert {p: p.read_bytes() for p in kit.out.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("option", ["--check", "--diff", "--tree"])
def test_failed_edit_sets_the_status(kit: Kit, option: str) -> None:
    broken(kit)
    extra = [kit.folder / "edited"] if option == "--tree" else []
    assert kit.run(option, *extra).returncode == 1
    assert not (kit.folder / "edited").exists()


def test_out_is_a_file(kit: Kit) -> None:
    kit.out.write_text("mine")
    assert "is a file" in error_line(kit.run("--out", kit.out))
    assert kit.out.read_text() == "mine"


def test_out_below_a_file(kit: Kit) -> None:
    kit.out.write_text("mine")
    assert str(kit.out) in error_line(kit.run("--out", kit.out / "dist"))


def test_out_on_a_read_only_mount(kit: Kit) -> None:
    """The test mounts one in a namespace of its own; where that is forbidden, /proc serves."""
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(kit.out)]
    kit.out.mkdir()
    command = " ".join(f"'{part}'" for part in kit.command("--out", kit.out))
    script = f"{' '.join(mount)} && {command}"
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script],
        env=kit.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        done = kit.run("--out", "/proc/out")
    assert "cannot be written" in error_line(done)


@pytest.mark.parametrize("limit", [1_000, 20_000])
def test_disk_fills_up(kit: Kit, limit: int) -> None:
    kit.build("--out", kit.folder / "warm")  # so that the limit is met while wheels are built
    (kit.tree / "vllm/big.bin").write_bytes(os.urandom(100_000))

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    line = error_line(kit.run("--out", kit.out, before=small_files))
    assert "File too large" in line
    assert not kit.out.exists()


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, ""),
        (signal.SIGINT, "open the base"),
        (signal.SIGINT, "building the wheel with setuptools"),
        (signal.SIGTERM, "building the wheel with setuptools"),
        (signal.SIGINT, "sealing both wheels"),
    ],
)
def test_interrupted_build_leaves_nothing(kit: Kit, number: int, line: str) -> None:
    """The signal is sent as soon as the build says this line."""
    (kit.tree / "vllm/big.bin").write_bytes(os.urandom(30_000_000))  # so that it takes a while
    process = subprocess.Popen(
        kit.command("--out", kit.out),
        env=kit.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    if line:
        while not process.stderr.readline().startswith(line):
            assert process.poll() is None
    else:
        time.sleep(0.3)  # Python itself has started
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted; nothing was written"
    assert "Traceback" not in stderr
    assert litter(kit.out) == []
    assert litter(kit.folder / "cache" / "work") == []


def test_killed_build_is_cleaned_up_by_the_next(kit: Kit) -> None:
    (kit.tree / "vllm/big.bin").write_bytes(os.urandom(30_000_000))
    process = subprocess.Popen(
        kit.command("--out", kit.out), env=kit.environment(), start_new_session=True
    )
    while not list(kit.out.glob(".vllm-ascend-*")):
        time.sleep(0.02)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(kit.out.glob(".vllm-ascend-*"))
    (kit.tree / "vllm/big.bin").unlink()
    kit.build()
    assert not list(kit.out.glob(".vllm-ascend-*"))
    assert litter(kit.folder / "cache" / "work") == []


def test_builds_side_by_side(kit: Kit) -> None:
    command = [*kit.command("--out", kit.out)]
    running = [
        subprocess.Popen(command, env=kit.environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert sum("waiting for another build" in text for text in errors) == 1
    assert not list(kit.out.glob(".vllm-ascend-*"))


def test_truncated_sdist(kit: Kit) -> None:
    archive = kit.folder / "vllm-0.18.0.tar.gz"
    shutil.copytree(kit.tree, kit.folder / "vllm-0.18.0")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(kit.folder / "vllm-0.18.0", "vllm-0.18.0")
    archive.write_bytes(archive.read_bytes()[:-200])
    error_line(kit.plain("--source", archive, "--check"))


@pytest.mark.parametrize("source", ["nothing", "transforms/answer.py", "transforms"])
def test_source_that_is_none(kit: Kit, source: str) -> None:
    assert Path(source).name in error_line(kit.plain("--source", kit.folder / source, "--check"))


def test_unknown_version_is_refused_without_asking_the_network(kit: Kit) -> None:
    line = error_line(kit.plain("--vllm", "0.99.0", "--check"))
    assert "--allow-unknown-base" in line


def test_source_and_vllm_exclude_each_other(kit: Kit) -> None:
    assert "exclude each other" in error_line(kit.run("--vllm", "0.18.0", "--check"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "SyntaxError"),
        ("x = 1", "TRANSFORM"),
        ("raise RuntimeError('first\\nsecond')", "first"),
    ],
)
def test_user_transform_that_is_none(kit: Kit, text: str, said: str) -> None:
    (kit.transforms / "answer.py").write_text(text)
    line = error_line(kit.run("--check"))
    assert "answer.py" in line and said in line


def test_user_transform_with_a_name_of_ours(kit: Kit) -> None:
    shutil.copy(kit.transforms / "answer.py", kit.transforms / "worker_daemon.py")
    assert "two transforms are named worker_daemon" in error_line(kit.run("--check"))


def test_cache_that_cannot_be_written(kit: Kit) -> None:
    (kit.folder / "file").write_text("mine")
    kit.env["VLLM_ASCEND_CACHE"] = str(kit.folder / "file" / "cache")
    assert "VLLM_ASCEND_CACHE" in error_line(kit.run("--check"))


def old_pythons() -> list[str]:
    """Interpreters before 3.11, wherever this machine keeps them."""
    names = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names += [str(p) for p in pyenv.glob("3.[6-9].*/bin/python")]
    return [name for name in names if name and subprocess.run([name, "-V"]).returncode == 0]


def test_old_python_gets_one_line() -> None:
    tree = SCRIPT.read_text()
    ast.parse(tree, feature_version=(3, 6))
    pretend = (
        "import runpy, sys; sys.version_info = (3, 9, 18, 'final', 0);"
        f" sys.argv = ['x']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    commands = [[python, str(SCRIPT)] for python in old_pythons()]
    for command in [[sys.executable, "-c", pretend], *commands]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: Python 3.11 or later is needed, this is 3.")
        assert done.stderr.count("\n") == 1


def test_missing_requirements_are_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-I", str(SCRIPT), "--list"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install ." in done.stderr and done.stderr.count("\n") == 1
