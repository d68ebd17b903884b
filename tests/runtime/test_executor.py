"""The daemon flag of workers, and the order of things at exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ascend_runtime.executor import worker_daemon

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("env", "daemon"),
    [
        ({}, True),
        ({"DYNAMIC_EPLB": "true"}, False),
        ({"DYNAMIC_EPLB": "TRUE"}, False),
        ({"DYNAMIC_EPLB": "1"}, False),
        ({"DYNAMIC_EPLB": "0"}, True),
        ({"DYNAMIC_EPLB": "false"}, True),
        ({"DYNAMIC_EPLB": "yes"}, True),
        ({"DYNAMIC_EPLB": ""}, True),
        ({"EXPERT_MAP_RECORD": "true"}, False),
        ({"EXPERT_MAP_RECORD": "True"}, True),
        ({"EXPERT_MAP_RECORD": "1"}, True),
        ({"DYNAMIC_EPLB": "0", "EXPERT_MAP_RECORD": "true"}, False),
        ({"DYNAMIC_EPLB": "1", "EXPERT_MAP_RECORD": "false"}, False),
    ],
)
def test_worker_daemon(env: dict[str, str], daemon: bool) -> None:
    assert worker_daemon(env) is daemon


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPERT_MAP_RECORD", raising=False)
    for value, daemon in (("1", False), ("0", True), ("true", False)):
        monkeypatch.setenv("DYNAMIC_EPLB", value)
        assert worker_daemon() is daemon


# The order of exit hooks that hangs: `weakref.finalize` is older than `multiprocessing.util`.
EXIT = """
import os, sys, time, weakref

class Executor:
    def shutdown(self):
        print("shutdown", flush=True)
        self.pipe.close()

executor = Executor()
finalizer = weakref.finalize(executor, executor.shutdown)
assert "multiprocessing.util" not in sys.modules

import multiprocessing
from ascend_runtime.executor import shut_down_before_join, worker_daemon

context = multiprocessing.get_context("fork")
there, executor.pipe = context.Pipe(duplex=False)

def work(pipe, parents_end):
    parents_end.close()
    try:
        pipe.recv()
    except EOFError:
        print("worker", flush=True)

shut_down_before_join(finalizer)
process = context.Process(
    target=work, args=(there, executor.pipe), daemon=worker_daemon()
)
process.start()
print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("1", ["end", "shutdown", "worker"]),
        ("0", ["end", "shutdown"]),  # a daemonic worker is terminated, as it has always been
    ],
)
def test_shutdown_comes_before_the_join(value: str, lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env={"DYNAMIC_EPLB": value},
        check=True,
    )
    assert done.stdout.splitlines() == lines
    assert not done.stderr
