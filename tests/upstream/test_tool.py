"""ci/upstream_tests.py itself, on a tiny stand-in for vLLM's tests and trees."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tool_kit import LIST, SCRIPT, assert_refused, tool


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead may wait to be reaped by somebody else."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_same_outcomes_and_expected_counts(ground: Path) -> None:
    done = tool(ground)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, done
    assert lines[0] == ["passed/failed/error/skipped", "pristine", "patched", "verdict"]
    assert lines[1] == ["tests/test_a.py", "3/1/1/2", "3/1/1/2", "same"]
    assert lines[2] == ["tests/test_b.py", "1/0/0/0", "1/0/0/0", "same"]
    assert lines[3][:2] == ["2", "files,"] and lines[3][-1] == "ok"
    assert sorted(line.split()[1] for line in done.stderr.splitlines()) == ["patched", "pristine"]


def test_differing_outcome_is_shown(ground: Path) -> None:
    (ground / "patched/fake_vllm.py").write_text("ANSWER = 2\n")
    done = tool(ground, passes=2)
    assert done.returncode == 1
    assert "    tests/test_a.py::test_answer: passed -> failed\n" in done.stdout
    assert "tests pass, not" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("NOT ok")


def test_difference_on_purpose(ground: Path) -> None:
    (ground / "patched/fake_vllm.py").write_text("ANSWER = 2\n")
    differs = '[file.differs]\n"tests/test_a.py::test_answer" = "a transform"\n'
    listed = f'[[file]]\npath = "tests/test_a.py"\npasses = 2\n{differs}'
    file = ground.parent / "other.toml"
    file.write_text(listed)
    done = tool(ground, "--expected", str(file))
    assert done.returncode == 0 and "same but for 1 on purpose" in done.stdout
    # Of another size: compiled code of a file as long, and as old by the second, would stay in use.
    (ground / "patched/fake_vllm.py").write_text("ANSWER = 1  # again\n")
    done = tool(ground, "--expected", str(file))
    assert done.returncode == 1 and "passed on both trees, but listed as changed" in done.stdout


def test_count_that_is_not_the_expected(ground: Path) -> None:
    done = tool(ground, passes=4)
    assert done.returncode == 1
    assert "    3 tests pass, not 4\n" in done.stdout


def test_update_writes_the_counts(ground: Path) -> None:
    done = tool(ground, "--update", passes=9)
    assert done.returncode == 0, done
    assert (ground.parent / "list.toml").read_text() == LIST.format(passes=3)


def test_one_tree_and_one_file(ground: Path) -> None:
    done = tool(ground, "--tree", "patched", "tests/test_b.py")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["tests/test_b.py", "1/0/0/0", "as", "expected"] and len(lines) == 3


def test_left_out_tests_are_not_run(ground: Path) -> None:
    text = '[file.leave_out]\n"tests/test_b.py::test_b" = "slow"\n'
    done = tool(ground, text=text)
    assert done.returncode == 1 and "    0 tests pass, not 1\n" in done.stdout
    shown = tool(ground, "--list", text=text).stdout.splitlines()
    assert shown[-1] == "    left out: test_b (slow)" and len(shown) == 3


def test_file_that_is_not_there(ground: Path) -> None:
    done = tool(ground, "tests/test_none.py")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == "error: vLLM's sdist has no test file tests/test_none.py; see --list"


@pytest.mark.parametrize(
    ("arguments", "text", "line"),
    [
        (["--jobs", "0"], "", "error: --jobs must be at least 1"),
        (["--update", "--tree", "patched"], "", "error: --update needs runs on both trees"),
        (["--update", "--list"], "", "error: --update needs runs on both trees"),
        (["--log", "/proc/none"], "", "error: the logs cannot be kept: "),
        (["--log", str(SCRIPT)], "", "error: the logs cannot be kept: File exists: "),
        (["--log", "/proc"], "", "error: the logs cannot be kept: "),
        (["--ground", "/proc/x"], "", "error: the ground of tests cannot be laid: "),
        (["--ground", str(SCRIPT)], "", "error: the ground of tests cannot be used: Not a dir"),
        (["--ground", f"{SCRIPT}/x"], "", "error: the ground of tests cannot be laid: Not a dir"),
        (["--ground", "/" + "x" * 300], "", "error: the ground of tests cannot be used: File name"),
    ],
)
def test_bad_input(ground: Path, arguments: list[str], text: str, line: str) -> None:
    done = tool(ground, *arguments, text=text)
    assert_refused(done)
    assert done.stderr.startswith(line), done.stderr


def test_odd_list_is_told_in_one_line(ground: Path) -> None:
    file = ground.parent / "odd.toml"
    file.write_text("[[file]]\npath = 3")
    assert_refused(tool(ground, "--expected", file), "odd.toml is no list of test files")
    assert_refused(tool(ground, "--expected", ground), "ground is no list of test files")


def test_update_refuses_what_the_list_lacks(ground: Path) -> None:
    (ground / "tests/test_c.py").write_text("def test_c():\n    pass\n")
    done = tool(ground, "--update", "tests/test_a.py", "tests/test_c.py", passes=9)
    assert_refused(done, "list.toml cannot be updated: it has no", '"tests/test_c.py"')
    text = '[[file]]\npath = "tests/test_c.py"\nprocess = "all"\npasses = 9\n'
    assert_refused(tool(ground, "--update", text=text), '"tests/test_c.py"', "passes = N")


def test_update_of_a_list_that_cannot_be_written(ground: Path) -> None:
    """A pipe can be read only; root may write any common file."""
    done = tool(ground, "--update", "--expected", "/dev/stdin", input=LIST.format(passes=9))
    assert_refused(done, "stdin cannot be updated: ", "not seekable")


@pytest.fixture
def sealed() -> Iterator[int]:
    """A file that can be opened for writing, but not written."""
    number = os.memfd_create("list", os.MFD_ALLOW_SEALING)
    os.write(number, LIST.format(passes=9).encode())
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
    yield number
    os.close(number)


def test_table_is_not_lost_with_the_list_or_the_logs(ground: Path, sealed: int) -> None:
    list_of_a_file = Path(f"/proc/{os.getpid()}/fd/{sealed}")
    done = tool(ground, "--update", "--expected", list_of_a_file)
    assert done.returncode == 2 and done.stdout.splitlines()[-1].endswith("ok")
    assert done.stderr.splitlines()[-1].startswith(f"error: {sealed} cannot be updated: ")
    assert "Traceback" not in done.stderr
    logs = ground.parent / "logs"
    (logs / "patched-tests-test_a.log").mkdir(parents=True)
    done = tool(ground, "--log", logs)
    assert done.returncode == 2 and done.stdout.splitlines()[-1].endswith("ok")
    assert done.stderr.splitlines()[-1].startswith("error: the logs cannot be kept: Is a dir")
    assert "Traceback" not in done.stderr


def test_logs_are_kept(ground: Path) -> None:
    logs = ground.parent / "new/logs"
    assert tool(ground, "--log", logs).returncode == 0
    kept = {path.name for path in logs.iterdir()}
    assert kept == {f"{t}-tests-test_{n}.log" for t in ("pristine", "patched") for n in "ab"}
    assert "1 failed, 5 passed, 1 skipped" in (logs / "patched-tests-test_b.log").read_text()


def test_update_keeps_the_count_of_a_run_that_ended_early(ground: Path) -> None:
    (ground / "tests/test_b.py").write_text("import os\ndef test_b():\n    os._exit(7)\n")
    done = tool(ground, "--update", passes=9)
    assert done.returncode == 1 and (ground.parent / "list.toml").read_text() == LIST.format(
        passes=9
    )


def test_reader_that_has_seen_enough(ground: Path) -> None:
    """Nobody reads the table: no traceback, and the logs are kept."""
    reading, writing = os.pipe()
    os.close(reading)
    done = tool(ground, "--log", ground.parent / "logs", stdout=writing)
    os.close(writing)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    assert len(list((ground.parent / "logs").iterdir())) == 4
    with Path("/dev/full").open("w") as full:
        done = tool(ground, "--list", stdout=full)
    line = "error: cannot write to standard output: No space left on device"
    assert (done.returncode, done.stderr.splitlines()) == (2, [line])


def test_crash_and_broken_file_are_told(ground: Path) -> None:
    (ground / "tests/test_b.py").write_text("import os\ndef test_b():\n    os._exit(7)\n")
    done = tool(ground)
    assert done.returncode == 1
    assert "    patched: pytest ended with status 7\n" in done.stdout
    (ground / "tests/test_b.py").write_text("import nowhere\n")
    done = tool(ground, passes=3)
    assert done.returncode == 1  # one pass is expected, and there is only the error
    assert ["tests/test_b.py", "0/0/1/0", "0/0/1/0", "WRONG"] in [
        line.split() for line in done.stdout.splitlines()
    ]
    assert "tests/test_a.py" in done.stdout and "3/1/1/2" in done.stdout


def test_run_that_takes_too_long_is_killed(ground: Path) -> None:
    pid = ground / "pid"
    (ground / "tests/test_b.py").write_text(
        "import pathlib, subprocess\n"
        "def test_b():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        f"    pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    text = '[[file]]\npath = "tests/test_b.py"\npasses = 1\ntimeout = 8\n'
    file = ground.parent / "short.toml"
    file.write_text(text)
    done = tool(ground, "--expected", str(file), "--tree", "patched")
    assert done.returncode == 1 and "killed after 8 s" in done.stdout
    assert not is_running(int(pid.read_text()))


def test_file_that_must_be_alone(ground: Path) -> None:
    """Both trees would find the other's file; `alone` makes them take turns."""
    busy = ground / "busy"
    (ground / "tests/test_b.py").write_text(
        "import pathlib, time\n"
        "def test_b():\n"
        f"    busy = pathlib.Path({str(busy)!r})\n"
        "    busy.touch(exist_ok=False)\n"
        "    time.sleep(2)\n"
        "    busy.unlink()\n"
    )
    file = ground.parent / "alone.toml"
    file.write_text('[[file]]\npath = "tests/test_b.py"\npasses = 1\nalone = true\n')
    assert tool(ground, "--jobs", "2", "--expected", str(file)).returncode == 0


def test_interrupt_ends_the_runs(ground: Path) -> None:
    pid = ground / "pid"
    (ground / "tests/test_b.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    file = ground.parent / "list.toml"
    file.write_text(LIST.format(passes=3))
    command = [sys.executable, SCRIPT, "--ground", ground, "--expected", file, "--tree", "patched"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and err.splitlines()[-1] == "interrupted"
    assert not is_running(int(pid.read_text()))
