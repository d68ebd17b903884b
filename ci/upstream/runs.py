"""Runs files of tests on one tree, in a process of pytest, and collects the outcome of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.upstream.ground import Ground

#: The processes at work, for `stop`.
_RUNNING: set[subprocess.Popen[bytes]] = set()
OUTCOMES = ("passed", "failed", "error", "skipped")
_KINDS = {"xfailed": "skipped", "xpassed": "failed"}


@dataclass(frozen=True)
class Run:
    """What became of the tests of some files on one tree.

    `outcomes` has each test's id and one of `OUTCOMES`; `seconds` is the process's wall time;
    `fault` says what ended the process early, and is empty if nothing did; `log` is its output.
    """

    outcomes: Mapping[str, str]
    seconds: float = 0.0
    fault: str = ""
    log: str = field(default="", repr=False)

    def of(self, path: str) -> dict[str, str]:
        """Return the outcomes of one file's tests."""
        return {t: o for t, o in self.outcomes.items() if t.partition("::")[0] == path}

    def counts(self, path: str) -> Counter[str]:
        """Return how many of one file's tests had which outcome."""
        return Counter(self.of(path).values())


def run(
    ground: Ground,
    tree: str,
    paths: Sequence[str],
    left_out: Sequence[str] = (),
    timeout: float = 900,
    test_timeout: float = 300,
) -> Run:
    """Run the tests of `paths`, but for those whose ids begin with one of `left_out`.

    A process that takes more than `timeout` seconds is killed with its children; a test that takes
    more than `test_timeout` fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder, "outcomes"), Path(folder, "log")
        command = [sys.executable, "-P", "-m", "pytest", "-p", "upstream_outcomes", "-q"]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", f"--timeout={test_timeout}"]
        command += [
            f"--basetemp={folder}/pytest",
            "--tb=short",
            "--continue-on-collection-errors",
            *paths,
        ]
        command += [part for test in left_out for part in ("--deselect", test)]
        environment = {**ground.environment(tree), "UPSTREAM_OUTCOMES": str(results)}
        begin = time.monotonic()
        with log.open("wb") as output:
            status = _status(command, ground.folder, environment, output.fileno(), timeout)
        seconds = time.monotonic() - begin
        lines = results.read_text().splitlines() if results.exists() else []
        outcomes = dict(json.loads(line) for line in lines)
        fault = "" if status in (0, 1) else _fault(status, timeout)
        return Run(
            {test: _KINDS.get(outcome, outcome) for test, outcome in outcomes.items()},
            seconds,
            fault or ("" if outcomes else "no test was run"),
            log.read_text("utf-8", "replace"),
        )


def _fault(status: int | None, timeout: float) -> str:
    if status is None:
        return f"killed after {timeout:.0f} s"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    # 2 and 3 are pytest's own for broken files and faults, which the outcomes show.
    return "" if status == 2 else f"pytest ended with status {status}"


def _status(
    command: list[str], folder: Path, environment: dict[str, str], output: int, timeout: float
) -> int | None:
    """Return a command's exit status; None if it was still running and had to be killed."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        _RUNNING.add(process)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)  # and what it may have left behind
            _RUNNING.discard(process)


def stop() -> None:
    """End all runs now, from another thread than theirs."""
    for process in list(_RUNNING):
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
