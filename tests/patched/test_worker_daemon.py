"""P3: workers that may have children, and an executor that ends before they are joined."""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from patched_kit import HERE, forks, python
from vllm.v1.executor import multiproc_executor as executors
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

FORK = multiprocessing.get_context("fork")
SWITCHES = ("DYNAMIC_EPLB", "EXPERT_MAP_RECORD")


def make_worker(**changed: object) -> executors.UnreadyWorkerProcHandle:
    """Call vLLM's own `make_worker_process` with stand-ins."""
    arguments: dict = {
        "vllm_config": None,
        "local_rank": 0,
        "rank": 3,
        "distributed_init_method": "tcp://127.0.0.1:1",
        "input_shm_handle": None,
        "shared_worker_lock": None,
        "is_driver_worker": True,
    }
    return WorkerProc.make_worker_process(**arguments | changed)


def process_keywords(patch: pytest.MonkeyPatch) -> dict:
    """Return what `make_worker_process` passes to `context.Process`."""
    seen: dict = {}

    def process(**keywords: object) -> SimpleNamespace:
        seen.update(keywords)
        return SimpleNamespace(start=lambda: None)

    context = SimpleNamespace(Pipe=FORK.Pipe, Process=process)
    patch.setattr(executors, "get_mp_context", lambda: context)
    handle = make_worker()
    handle.ready_pipe.close()
    handle.death_writer.close()
    return seen


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Set the environment's switches; those not named are unset."""

    def use(values: dict[str, str]) -> None:
        for name in SWITCHES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.mark.parametrize(
    ("values", "daemon"),
    [
        ({}, True),
        ({"DYNAMIC_EPLB": "TRUE"}, False),
        ({"DYNAMIC_EPLB": "true"}, False),
        ({"DYNAMIC_EPLB": "1"}, False),
        ({"DYNAMIC_EPLB": "0"}, True),
        ({"EXPERT_MAP_RECORD": "true"}, False),
        ({"EXPERT_MAP_RECORD": "True"}, True),
        ({"EXPERT_MAP_RECORD": "1"}, True),
        ({"DYNAMIC_EPLB": "0", "EXPERT_MAP_RECORD": "true"}, False),
    ],
)
def test_daemon_flag_that_reaches_the_process(monkeypatch, switches, values, daemon) -> None:
    switches(values)
    keywords = process_keywords(monkeypatch)
    assert keywords["daemon"] is daemon
    assert keywords["target"] is WorkerProc.worker_main
    assert keywords["name"] == "VllmWorker-3"
    assert set(keywords) == {"target", "kwargs", "name", "daemon"}


def start_a_manager(**keywords: object) -> None:
    """Stand in for `worker_main`: say what became of a `multiprocessing.Manager`."""
    try:
        with multiprocessing.Manager() as manager:
            answer = str(manager.list([1, 2]))
    except AssertionError as error:
        answer = str(error)
    keywords["ready_pipe"].send(answer)


@pytest.mark.parametrize(
    ("value", "answer"),
    [("1", "[1, 2]"), ("0", "daemonic processes are not allowed to have children")],
)
def test_real_worker_starts_a_manager(monkeypatch, switches, value, answer) -> None:
    switches({"DYNAMIC_EPLB": value})
    monkeypatch.setattr(WorkerProc, "worker_main", staticmethod(start_a_manager))
    monkeypatch.setattr(executors, "get_mp_context", lambda: FORK)
    handle = make_worker()
    assert handle.ready_pipe.poll(30)
    assert handle.ready_pipe.recv() == answer
    handle.proc.join(30)
    assert handle.proc.exitcode == 0


HEADLESS = """
import os
from vllm.entrypoints.cli import serve
from vllm.v1.executor.abstract import Executor
import pytest
import test_worker_daemon as test

os.environ["DYNAMIC_EPLB"] = "1"
with pytest.MonkeyPatch.context() as patch:
    print(test.process_keywords(patch)["daemon"], serve.MultiprocExecutor is test.MultiprocExecutor)
"""


def test_command_line_imported_first_makes_no_difference() -> None:
    assert forks({"serve": HEADLESS}) == {"serve": "False True\n"}


def test_class_is_the_one_that_everybody_knows() -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="mp"))
    assert Executor.get_class(config) is MultiprocExecutor
    assert MultiprocExecutor.__mro__[1] is Executor
    assert MultiprocExecutor.__module__ == "vllm.v1.executor.multiproc_executor"


def test_is_driver_worker_has_no_default() -> None:
    parameter = inspect.signature(WorkerProc.make_worker_process).parameters["is_driver_worker"]
    assert parameter.default is inspect.Parameter.empty


class ReachedError(Exception):
    """Ends an initialisation at the point of interest."""


def test_message_queue_binds_to_the_own_address_not_to_the_masters(monkeypatch) -> None:
    parallel = SimpleNamespace(
        world_size=16,
        local_world_size=8,
        nnodes_within_dp=2,
        node_rank_within_dp=0,
        node_rank=2,
        master_addr="203.0.113.9",
        tensor_parallel_size=16,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    queues, lines = [], []

    def queue(*arguments: object, **keywords: object) -> None:
        queues.append((arguments, keywords))
        raise ReachedError

    monkeypatch.setattr(executors, "MessageQueue", queue)
    monkeypatch.setattr(executors, "get_ip", lambda: "192.0.2.7")
    monkeypatch.setattr(executors.logger, "info", lambda line, *rest: lines.append(line % rest))
    executor = MultiprocExecutor.__new__(MultiprocExecutor)
    executor.parallel_config = parallel
    with pytest.raises(ReachedError):
        executor._init_executor()
    executor._finalizer.detach()
    ((sizes, keywords),) = queues
    assert sizes == (16, 8)
    assert keywords["connect_ip"] == "192.0.2.7"
    (line,) = lines
    assert line.startswith("DP group leader: node_rank=2")
    assert "mq_connect_ip=192.0.2.7" in line


def test_executor_ends_before_its_workers_are_joined() -> None:
    """Without the executor's early shutdown each of the two ends would wait for ever."""
    done = python(HERE / "exit_scenes.py", timeout=90, DYNAMIC_EPLB="1")
    assert done.stdout.splitlines() == [
        "worker answers, daemon False",
        "engine ended with 1",
        "worker answers, daemon False",
        "end of the main module",
    ]
    assert "ValueError: no memory for the KV cache" in done.stderr
    assert done.returncode == 0
