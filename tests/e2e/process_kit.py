"""Processes: what belongs to one, how much memory they take, and whether they are gone."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it and its children have started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that run; a dead one that nobody has waited for does not."""
    return [one for one in processes if _runs(one)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left(processes: Iterable[psutil.Process], seconds: float) -> list[str]:
    """Wait until processes have ended, and return the command lines of those that have not."""
    deadline = time.monotonic() + seconds
    rest = alive(processes)
    while rest and time.monotonic() < deadline:
        time.sleep(0.1)
        rest = alive(rest)
    return [f"{one.pid} {' '.join(one.cmdline())}" for one in rest]


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill what is left of a test that failed."""
    for one in alive(processes):
        one.kill()


def resident(processes: Iterable[psutil.Process]) -> int:
    """Return the bytes of memory that processes have in use, all together."""
    return sum(one.memory_info().rss for one in alive(processes))
