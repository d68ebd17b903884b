"""ci/upstream_tests.py itself, on a tiny stand-in for vLLM's tests and trees."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ci.upstream.expected import TestFile as Entry
from ci.upstream.expected import faults, read_list
from ci.upstream.runs import Run
from rewriter.errors import RewriterError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci/upstream_tests.py"
TESTS = """
import pytest
from fake_vllm import ANSWER

def test_same():
    pass

def test_answer():
    assert ANSWER == 1

@pytest.mark.parametrize("n", [1, 2])
def test_number(n):
    assert n < 2

@pytest.mark.skip
def test_skipped():
    pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError

def test_teardown(broken):
    pass

@pytest.mark.xfail
def test_known():
    assert False
"""
LIST = """
[[file]]
path = "tests/test_a.py"
passes = {passes}
process = "all"

[[file]]
path = "tests/test_b.py"
passes = 1
process = "all"
"""


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A ground as ci.upstream lays it, with trees that differ when a test says so."""
    folder = tmp_path / "ground"
    for place in ("tests", "home", "pristine", "patched"):
        (folder / place).mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "tests/test_a.py").write_text(TESTS)
    (folder / "tests/test_b.py").write_text("def test_b():\n    pass\n")
    for tree in ("pristine", "patched"):
        (folder / tree / "fake_vllm.py").write_text("ANSWER = 1\n")
    return folder


def tool(ground: Path, *arguments: str, text: str = "", passes: int = 3, timeout: float = 100):
    """Run the tool on the ground, with a list of what is expected."""
    file = ground.parent / "list.toml"
    file.write_text(LIST.format(passes=passes) + text)
    command = [sys.executable, SCRIPT, "--ground", ground, "--expected", file, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


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
    (ground / "patched/fake_vllm.py").write_text("ANSWER = 1\n")
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
        ([], "[[file]]\npathh = 1\n", "error: list.toml is no list of test files"),
        ([], "[[", "error: list.toml is no list of test files"),
    ],
)
def test_bad_input(ground: Path, arguments: list[str], text: str, line: str) -> None:
    done = tool(ground, *arguments, text=text)
    assert done.returncode == 2 and done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1


def test_foreign_folder_is_no_ground(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine").touch()
    done = tool(tmp_path / "other", "tests/test_b.py")
    assert done.returncode == 2 and "is neither empty nor a ground" in done.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["mine"]


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


def test_verdict_knows_each_test_by_its_name() -> None:
    """Counts alone would be the same here."""
    one = Run({"tests/a.py::x": "passed", "tests/a.py::y": "failed"})
    two = Run({"tests/a.py::x": "failed", "tests/a.py::y": "passed"})
    assert faults(Entry("tests/a.py", 0), one, two) == [
        "tests/a.py::x: passed -> failed",
        "tests/a.py::y: failed -> passed",
    ]
    assert faults(Entry("tests/a.py"), one, Run({"tests/a.py::x": "passed"})) == [
        "tests/a.py::y: failed -> not run"
    ]


def test_list_is_sound() -> None:
    files = read_list()
    assert len({file.path for file in files}) == len(files) > 30
    assert all(file.passes for file in files)
    for file in files:
        assert all(test.startswith(f"{file.path}::") for test in [*file.leave_out, *file.differs])
    with pytest.raises(RewriterError, match="is no list of test files"):
        read_list(ROOT / "nowhere.toml")
