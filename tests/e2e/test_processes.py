"""Workers that start processes of their own; and no process is left, whichever way it ends.

An engine of two workers, in the program's own process or in one beside it, by both start methods.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import process_kit
import psutil
import pytest
from e2e_kit import HERE, Ground, by_transformers, prompts

COUNT = 8
#: Spawned processes import vLLM anew, which takes most of a minute on two cores.
ENGINES = [
    pytest.param("fork", "0", id="fork, engine in the process"),
    pytest.param("fork", "1", id="fork, engine beside it"),
    pytest.param("spawn", "0", id="spawn, engine in the process", marks=pytest.mark.slow),
    pytest.param("spawn", "1", id="spawn, engine beside it", marks=pytest.mark.slow),
]


@dataclass(frozen=True)
class Scene:
    """A program with an engine that has answered and now waits."""

    process: subprocess.Popen[str]
    told: list[dict[str, Any]]
    tokens: list[list[int]]
    members: list[psutil.Process]

    def named(self, name: str) -> list[int]:
        return [one.pid for one in self.members if name in "".join(one.cmdline())]

    def reads(self, text: str) -> str:
        """Return the next line that has a text in it."""
        assert self.process.stdout
        return next((line for line in self.process.stdout if text in line), "")

    def finish(self) -> str:
        """Let the program end; return what it says last."""
        said, _ = self.process.communicate(timeout=60)
        return said

    def left(self) -> list[str]:
        """Return what runs yet. A worker gives its peers five seconds and some to end."""
        return process_kit.left(self.members, 20)


@contextmanager
def scene(e2e: Ground, method: str, beside: str, balances: str, again: bool = False) -> Iterator:
    folder = e2e.model("qwen3")
    environment = e2e.environment(
        VLLM_WORKER_MULTIPROC_METHOD=method,
        VLLM_ENABLE_V1_MULTIPROCESSING=beside,
        DYNAMIC_EPLB=balances,
        OMP_NUM_THREADS="1",
    )
    job = {"folder": str(folder), "prompts": prompts(folder)[:2], "count": COUNT, "again": again}
    with (
        (e2e.work / "scene.log").open("w+") as log,
        subprocess.Popen(
            [sys.executable, HERE / "process_scene.py"],
            env=environment,
            cwd=e2e.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin and process.stdout
        members = [psutil.Process(process.pid)]
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            lines = iter(process.stdout.readline, "")
            line = next((line for line in lines if line.startswith('{"told"')), None)
            assert line, (log.seek(0), log.read()[-8000:])
            members = process_kit.family(process.pid)
            yield Scene(process, **json.loads(line), members=members)
        finally:
            process_kit.end(members)


def check(e2e: Ground, one: Scene, beside: str) -> None:
    """The engine's processes are those that were asked for, and its tokens are right."""
    folder = e2e.model("qwen3")
    assert one.tokens == by_transformers(folder, prompts(folder)[:2], COUNT)
    workers = [told["worker"] for told in one.told]
    assert len({*workers}) == 2
    (engine,) = one.named("EngineCore") if beside == "1" else [one.process.pid]
    members = {member.pid: member for member in one.members}
    assert {members[worker].ppid() for worker in workers} == {engine}
    for told in one.told:
        assert told["daemon"] is False
        assert told["plan"] == [1, 2]
        assert members[told["manager"]].ppid() == told["worker"]


@pytest.mark.parametrize(("method", "beside"), ENGINES)
def test_end_of_the_program(e2e: Ground, method: str, beside: str) -> None:
    with scene(e2e, method, beside, "1") as one:
        check(e2e, one, beside)
        one.finish()
        assert one.process.returncode == 0
        assert not one.left()


@pytest.mark.parametrize(("method", "beside"), ENGINES)
def test_kill_of_the_workers_parent(e2e: Ground, method: str, beside: str) -> None:
    """Nobody can tell workers and managers to end; a client that asks later hears of it.

    One that asks before its client knows of the death waits for ever: a limit of vLLM 0.18.0.
    """
    with scene(e2e, method, beside, "1", again=True) as one:
        check(e2e, one, beside)
        if beside == "0":
            one.process.kill()
            one.process.wait()
        else:
            (engine,) = one.named("EngineCore")
            psutil.Process(engine).kill()
            assert one.reads("died unexpectedly")
            assert json.loads(one.finish().splitlines()[-1]) == "EngineDeadError"
            assert one.process.returncode == 0
        assert not one.left()


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="an engine core does not see that its client was killed")
@pytest.mark.parametrize("balances", ["0", "1"])
def test_kill_of_the_engines_client(e2e: Ground, balances: str) -> None:
    """A limit of vLLM 0.18.0, with daemonic workers as with others."""
    with scene(e2e, "fork", "1", balances) as one:
        one.process.kill()
        one.process.wait()
        assert not one.left()


def test_workers_without_the_variable_may_have_no_children(e2e: Ground) -> None:
    with scene(e2e, "fork", "0", "0") as one:
        assert {told["error"] for told in one.told} == {
            "daemonic processes are not allowed to have children"
        }
        one.finish()
        assert not one.left()
