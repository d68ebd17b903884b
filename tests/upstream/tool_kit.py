"""Runs ci/upstream_tests.py on a tiny stand-in for vLLM's tests and trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ci.upstream.ground import Ground

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


def small_ground(folder: Path) -> Path:
    """A ground as ci.upstream lays it, with trees that differ when a test says so."""
    for place in ("tests", "home/hub/models--a/refs", "pristine", "patched"):
        (folder / place).mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "tests/test_a.py").write_text(TESTS)
    (folder / "tests/test_b.py").write_text("def test_b():\n    pass\n")
    for tree in ("pristine", "patched"):
        (folder / tree / "fake_vllm.py").write_text("ANSWER = 1\n")
    Ground(folder).seal()
    return folder


def tool(
    ground: Path,
    *arguments: str | Path,
    text: str = "",
    passes: int = 3,
    timeout: float = 100,
    **process: object,
):
    """Run the tool on the ground, with a list of what is expected."""
    file = ground.parent / "list.toml"
    file.write_text(LIST.format(passes=passes) + text)
    command = [sys.executable, SCRIPT, "--ground", ground, "--expected", file, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **process}
    return subprocess.run(command, text=True, timeout=timeout, **streams)


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Nothing was run, and one line says why."""
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "") and line.startswith("error: ")
    assert all(part in line for part in parts), line
