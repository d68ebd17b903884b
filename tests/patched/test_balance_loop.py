"""P5: when engines gather, which engines do, and that their loop and start are upstream's."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from scheduler_kit import make_request, make_scheduler, step
from vllm.v1.engine import core
from vllm.v1.engine.core import DPEngineCoreProc, EngineCoreProc

import ascend_runtime.balance

GROUP = object()


class Loop(DPEngineCoreProc):
    """The busy loop of a data-parallel engine over iterations that a test makes up.

    Each is whether the model ran, whether requests are left here, and what the ranks agree on.
    """

    def __init__(self, iterations: list[tuple[bool, bool, bool]], scheduler: object = None) -> None:
        self.iterations = iterations
        self.number = -1
        self.engines_running = False
        self.eep_scaling_state = None
        self.current_wave = self.step_counter = 0
        self.dp_rank, self.dp_group = 0, GROUP
        self.has_coordinator = True
        self.publish_dp_lb_stats = False
        self.output_queue = SimpleNamespace(put_nowait=lambda output: None)
        self.scheduler = scheduler or SimpleNamespace()
        self.scheduler.has_unfinished_requests = lambda: self.iterations[self.number][1]
        self.did: list[str] = []

    def _handle_shutdown(self) -> bool:
        self.number += 1
        return self.number < len(self.iterations)

    def _process_input_queue(self) -> None:
        self.did.append("input")

    def _process_engine_step(self) -> bool:
        return self.iterations[self.number][0]

    def execute_dummy_batch(self) -> None:
        self.did.append("dummy")

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        self.did.append("reduce")
        return self.iterations[self.number][2]


#: (ran, left here, running anywhere)
ITERATIONS = [
    (True, True, True),
    (False, True, True),
    (False, False, True),  # an idle rank among busy ones
    (True, False, False),  # the end of a wave
    (False, False, False),  # idle
    (False, False, False),  # idle
    (True, True, True),
]


def test_gathers_once_in_each_iteration_that_is_not_idle(monkeypatch) -> None:
    loop = Loop(ITERATIONS)

    def after_step(scheduler: object, group: object) -> None:
        assert (scheduler, group) == (loop.scheduler, GROUP)
        loop.did.append(f"gather {loop.engines_running} in wave {loop.current_wave}")

    monkeypatch.setattr(ascend_runtime.balance, "after_step", after_step)
    with pytest.raises(SystemExit):
        loop.run_busy_loop()
    ran = ["input", "reduce", "gather True in wave 0"]
    dummy = ["input", "dummy", "reduce", "gather True in wave 0"]
    end = ["input", "reduce", "gather False in wave 0"]  # before the wave is closed
    again = ["input", "reduce", "gather True in wave 1"]
    assert loop.did == [*ran, *dummy, *dummy, *end, "input", "input", *again]


@pytest.mark.parametrize(("value", "gathered"), [("0", 0), ("1", 5)])
def test_scheduler_gathers_if_balanced(monkeypatch, value, gathered) -> None:
    monkeypatch.setenv("VLLM_ASCEND_BALANCE_SCHEDULING", value)
    scheduler = make_scheduler(ranks=2)
    groups: list[object] = []
    scheduler.balance_gather = groups.append
    with pytest.raises(SystemExit):
        Loop(ITERATIONS, scheduler).run_busy_loop()
    assert groups == [GROUP] * gathered


def test_scheduler_of_another_kind_does_not_gather(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_ASCEND_BALANCE_SCHEDULING", "1")
    loop = Loop(ITERATIONS)
    assert not hasattr(loop.scheduler, "balance_gather")
    with pytest.raises(SystemExit):
        loop.run_busy_loop()
    assert loop.did.count("reduce") == 5


def test_elastic_scaling_makes_progress_and_ends(monkeypatch) -> None:
    loop = Loop([(True, True, True)] * 4)
    steps = iter([False, False, True])
    loop.process_input_queue_block = False
    loop.eep_scaling_state = SimpleNamespace(
        progress=lambda: loop.did.append("scale"), is_complete=lambda: next(steps)
    )
    monkeypatch.setattr(ascend_runtime.balance, "after_step", lambda *_: None)
    with pytest.raises(SystemExit):
        loop.run_busy_loop()
    assert loop.did == ["input", "scale", "reduce"] * 3 + ["input", "reduce"]
    assert loop.eep_scaling_state is None
    assert loop.process_input_queue_block is True


class Independent(EngineCoreProc):
    """The busy loop of an engine that shares no step with others."""

    def __init__(self, scheduler: object) -> None:
        self.scheduler = scheduler
        self.scheduled: list[dict] = []

    def _handle_shutdown(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def _process_input_queue(self) -> None:
        pass

    def _process_engine_step(self) -> bool:
        self.scheduled.append(step(self.scheduler))
        return True


def test_independent_engines_neither_gather_nor_hold(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_ASCEND_BALANCE_SCHEDULING", "1")
    monkeypatch.setattr(ascend_runtime.balance, "after_step", lambda *_: pytest.fail("gathers"))
    scheduler = make_scheduler(max_num_seqs=2)
    for name, new in (("0", 3), ("1", 1), ("2", 2)):
        scheduler.add_request(make_request(name, new=new))
    engine = Independent(scheduler)
    with pytest.raises(SystemExit):
        engine.run_busy_loop()
    # The place of request 1 is taken at once, though another request still runs.
    assert engine.scheduled == [{"0": 10, "1": 10}, {"0": 1, "2": 10}, {"0": 1, "2": 1}]
    assert scheduler.balance_counts == [0]


class StartedError(Exception):
    """Ends the start of an engine where its class is known."""


@pytest.mark.parametrize("is_moe", [False, True])
def test_start_of_a_data_parallel_engine(monkeypatch, is_moe) -> None:
    """Dense models start as independent engines; all else of the start is there as well."""
    started: list[tuple] = []

    def start(self: object, *_: object, **keywords: object) -> None:
        started.append((type(self), keywords.get("engine_index")))
        raise StartedError

    titles: list[tuple] = []
    signals: list[tuple] = []
    monkeypatch.setattr(EngineCoreProc, "__init__", start)
    monkeypatch.setattr(core, "set_process_title", lambda *title: titles.append(title))
    monkeypatch.setattr(core, "maybe_init_worker_tracer", lambda *tracer: titles.append(tracer))
    monkeypatch.setattr(core, "decorate_logs", lambda: None)
    monkeypatch.setattr(core, "maybe_register_config_serialize_by_value", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *handler: signals.append(handler))
    parallel = SimpleNamespace(
        data_parallel_size=2,
        data_parallel_size_local=2,
        data_parallel_rank=7,
        data_parallel_rank_local=None,
        data_parallel_index=7,
    )
    config = SimpleNamespace(
        parallel_config=parallel,
        model_config=SimpleNamespace(is_moe=is_moe),
        kv_transfer_config=SimpleNamespace(engine_id="engine"),
    )
    arguments = {"executor_class": None, "log_stats": False, "local_client": True}
    arguments["handshake_address"] = ""
    with pytest.raises(StartedError):
        EngineCoreProc.run_engine_core(dp_rank=1, local_dp_rank=1, vllm_config=config, **arguments)
    assert started == [(DPEngineCoreProc, 1) if is_moe else (EngineCoreProc, 1)]
    assert titles == [
        ("EngineCore_DP1",),
        ("vllm.engine_core", "engine_core", "EngineCore_DP1"),
    ]
    assert config.kv_transfer_config.engine_id == "engine_dp1"
    assert parallel.data_parallel_index == parallel.data_parallel_rank_local == 1
    sizes = (parallel.data_parallel_size, parallel.data_parallel_size_local)
    assert (*sizes, parallel.data_parallel_rank) == ((2, 2, 1) if is_moe else (1, 1, 0))
    assert signals == [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_DFL)]
