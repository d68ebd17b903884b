"""The output folder: what is ours in it is replaced, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from cli_kit import ROOT, Kit, error_line, litter


@pytest.mark.parametrize(
    "mine", ["report.html", "report.json", "patches", "patches/standalone", "patches/series"]
)
def test_a_file_of_the_users_is_in_the_way(kit: Kit, mine: str) -> None:
    (kit.out / mine).parent.mkdir(parents=True)
    (kit.out / mine).write_text('{"mine": 1}')
    before = litter(kit.out)
    assert f"{mine} is there and no build of ours made it" in error_line(kit.run("--out", kit.out))
    assert (kit.out / mine).read_text() == '{"mine": 1}'
    assert litter(kit.out) == before


def test_a_wheel_of_the_same_name_is_in_the_way(kit: Kit) -> None:
    names = list(kit.build()["artifacts"])
    (wheel,) = [n for n in names if n.startswith("vllm-")]
    other = kit.folder / "other"
    other.mkdir()
    (other / wheel).write_text("mine")
    assert wheel in error_line(kit.run("--out", other))
    assert litter(other) == [wheel]


def test_a_link_in_the_place_of_a_folder_is_not_followed(kit: Kit) -> None:
    elsewhere = kit.folder / "elsewhere"
    elsewhere.mkdir()
    kit.out.mkdir()
    (kit.out / "patches").symlink_to(elsewhere)
    assert "patches is there" in error_line(kit.run("--out", kit.out))
    assert litter(elsewhere) == []


def test_folders_that_look_like_ours_are_left_alone(kit: Kit) -> None:
    mine = kit.out / ".vllm-ascend-out-mine"
    mine.mkdir(parents=True)
    (mine / "file").write_text("mine")
    (kit.out / ".vllm-ascend-out-link").symlink_to(kit.folder)
    kit.build()
    assert (mine / "file").read_text() == "mine"
    assert (kit.out / ".vllm-ascend-out-link").is_symlink()


def test_a_second_build_replaces_the_first(kit: Kit) -> None:
    kit.build()
    (kit.out / "report.html").write_text("changed by hand")
    kit.build()
    assert "changed by hand" not in (kit.out / "report.html").read_text()


def test_builds_with_other_caches_wait_too(kit: Kit) -> None:
    environments = [
        {**kit.environment(), "VLLM_ASCEND_CACHE": str(kit.folder / f"cache{n}")} for n in (1, 2)
    ]
    running = [
        subprocess.Popen(kit.command("--out", kit.out), env=env, stderr=subprocess.PIPE, text=True)
        for env in environments
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert sum("waiting for another build" in text for text in errors) == 1


def test_a_tree_beside_a_build(kit: Kit) -> None:
    running = [
        subprocess.Popen(kit.command(*options), env=kit.environment(), stderr=subprocess.PIPE)
        for options in (("--out", kit.out), ("--tree", kit.out / "tree"))
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert (kit.out / "tree/vllm/answer.py").is_file()
    assert not list(kit.out.glob(".vllm-ascend-*"))


def test_killed_tree_is_cleaned_up_by_the_next(kit: Kit) -> None:
    (kit.tree / "vllm/big.bin").write_bytes(os.urandom(60_000_000))
    parent = kit.folder / "parent"
    for number in range(20):  # on a busy machine it may be done before it is seen
        process = subprocess.Popen(
            kit.command("--tree", parent / f"x{number}"),
            env=kit.environment(),
            start_new_session=True,
        )
        while process.poll() is None and not list(parent.glob(".vllm-ascend-tree-*")):
            time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if list(parent.glob(".vllm-ascend-tree-*")):
            break
    else:
        pytest.fail("never killed in time")
    assert kit.run("--tree", parent / "y").returncode == 0
    assert not list(parent.glob(".vllm-ascend-*"))


@pytest.mark.parametrize("option", ["--out", "--tree"])
def test_output_inside_the_sources_package(kit: Kit, option: str) -> None:
    before = litter(kit.tree)
    inside = kit.tree / "vllm" / "dist"
    assert "is inside the source's vllm/" in error_line(kit.run(option, inside))
    assert litter(kit.tree) == before


def test_tree_that_does_not_fit_is_one_short_line(kit: Kit) -> None:
    import resource

    for number in range(50):
        (kit.tree / f"vllm/big{number}.bin").write_bytes(os.urandom(60_000))
    kit.run("--check")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # noqa: E731
    line = error_line(kit.run("--tree", kit.folder / "x", before=limit))
    assert len(line) < 500
    assert not (kit.folder / "x").exists()


def test_nothing_to_build(kit: Kit) -> None:
    source = ["--source", kit.tree, "--base-version", "0.16.0"]
    line = error_line(kit.plain(*source, "--out", kit.out))
    assert "no transform edits vLLM 0.16.0" in line
    assert not kit.out.exists()


@pytest.mark.parametrize("option", ["--out", "--tree", "--source", "--vllm", "--transforms"])
def test_empty_values(kit: Kit, option: str) -> None:
    assert "is empty" in error_line(kit.plain(option, ""))


@pytest.mark.parametrize(
    "options",
    [
        ["--list", "--vllm", "0.18.0"],
        ["--check", "--out", "x"],
        ["--explain", "a", "--source", "b"],
    ],
)
def test_options_without_a_use(kit: Kit, options: list[str]) -> None:
    assert "has no meaning with" in error_line(kit.plain(*options))


def shell(kit: Kit, redirections: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = " ".join(f"'{part}'" for part in kit.command(*args))
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {redirections}"],
        env=kit.environment(),
        cwd=kit.folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("redirections", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "| true"])
def test_closed_and_full_streams_change_no_result(kit: Kit, redirections: str) -> None:
    assert shell(kit, redirections, "--check").returncode == 0
    assert shell(kit, redirections, "--out", kit.out).returncode == 0
    assert (kit.out / "report.json").is_file()
    (kit.tree / "vllm/answer.py").write_text("def answer():\n    return 3\n")
    assert shell(kit, redirections, "--check").returncode == 1


def test_full_standard_output_is_said(kit: Kit) -> None:
    done = shell(kit, ">/dev/full", "--check")
    assert done.returncode == 2
    assert "cannot write to standard output" in done.stderr


def test_a_killed_ruff_ends_the_build(kit: Kit) -> None:
    """A wheel without its layout would be a silently different one."""
    folder = kit.folder / "bin"
    folder.mkdir()
    fake = folder / "ruff"
    fake.write_text("#!/bin/sh\nkill -9 $$\n")
    fake.chmod(0o755)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import rewriter.layout as l;"
        f"l.find_ruff_bin = lambda: {str(fake)!r}; from rewriter.cli import main;"
        f"sys.exit(main(sys.argv[1:], {str(ROOT / 'ascend_runtime')!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *kit.command("--out", kit.out)[2:]],
        env=kit.environment(),
        cwd=kit.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ruff was ended by signal 9" in error_line(done)
    assert not kit.out.exists()


def test_interrupted_after_the_artefacts_are_there(kit: Kit) -> None:
    """A reader that takes nothing keeps the build waiting at its last step."""
    (kit.tree / "vllm/x").mkdir()
    read, write = os.pipe()
    os.set_blocking(write, False)
    with_room = os.write(write, b"x" * 1_000_000)  # fill the pipe
    assert with_room
    os.set_blocking(write, True)
    process = subprocess.Popen(
        kit.command("--out", kit.out, "--json"),
        env=kit.environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    while not (kit.out / "report.html").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    os.close(read)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted; all was written"
