"""P5: what the scheduler admits while another rank is full, and that the rest is upstream's."""

from __future__ import annotations

import json
import os
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import schedule_playback
from patched_kit import HERE, python
from scheduler_kit import make_request, make_scheduler, run_model, step
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import DPEngineCoreProc, DPMoEEngineCoreActor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

SWITCH = "VLLM_ASCEND_BALANCE_SCHEDULING"
KINDS = (Scheduler, AsyncScheduler)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch balancing on."""
    monkeypatch.setenv(SWITCH, "1")


def test_worked_example_on_two_engines() -> None:
    """Four places on each rank; on rank 0 one request ends in each of the steps 2 and 3."""
    done = python(HERE / "balance_ranks.py", **{SWITCH: "1"})
    assert done.returncode == 0, done.stderr
    ranks = [rank["iterations"] for rank in json.loads(done.stdout)]
    # waiting, admitted, running after that, and what all ranks then know
    assert ranks[0][:4] == [
        [5, 4, 4, [4, 1]],
        [1, 0, 4, [3, 1]],
        [1, 0, 3, [2, 1]],
        [1, 1, 3, [3, 4]],
    ]
    assert ranks[1][:4] == [
        [1, 1, 1, [4, 1]],
        [3, 0, 1, [3, 1]],
        [3, 0, 1, [2, 1]],
        [3, 3, 4, [3, 4]],
    ]
    # Both leave the loop together, in the iteration whose reduction finds nothing unfinished.
    assert [len(iterations) for iterations in ranks] == [32, 32]
    assert [iterations[-1][3] for iterations in ranks] == [[0, 0], [0, 0]]
    assert [rank["dummies"] for rank in json.loads(done.stdout)] == [21, 21]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("counts", "scheduled"), [([0, 3], {}), ([0, 2], {"0": 10, "1": 10})])
def test_hold_while_a_rank_is_nearly_full(on, kind, counts, scheduled) -> None:
    scheduler = make_scheduler(kind, ranks=2)
    assert scheduler.balance_counts == [0, 0]
    for name in ("0", "1"):
        scheduler.add_request(make_request(name))
    scheduler.balance_counts = counts
    assert step(scheduler) == scheduled


def test_running_requests_go_on_while_others_are_held(on) -> None:
    scheduler = make_scheduler(ranks=2)
    scheduler.add_request(make_request("0"))
    assert step(scheduler) == {"0": 10}
    scheduler.add_request(make_request("1"))
    scheduler.balance_counts = [1, 4]
    assert step(scheduler) == {"0": 1}
    scheduler.balance_counts = [1, 2]
    assert step(scheduler) == {"0": 1, "1": 10}


def test_counts_do_not_matter_when_switched_off(monkeypatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    scheduler = make_scheduler(ranks=2)
    assert scheduler.balance_counts is None
    scheduler.add_request(make_request("0"))
    assert step(scheduler) == {"0": 10}


def test_decisions_are_those_of_the_pristine_scheduler(base, monkeypatch) -> None:
    """Switched off, and switched on while the counts are zero."""
    path = os.pathsep.join([str(base.root), str(HERE)])
    pristine = python(HERE / "schedule_playback.py", PYTHONPATH=path)
    assert pristine.returncode == 0, pristine.stderr
    lines = pristine.stdout.splitlines()
    assert len(lines) == 4 * schedule_playback.STEPS
    assert sum("'preempted_req_ids': []" not in line for line in lines) > 10
    for value in ("0", "1"):
        monkeypatch.setenv(SWITCH, value)
        assert schedule_playback.transcript().splitlines() == lines


def test_edits_only_insert(installed) -> None:
    (transform,) = [t for t in installed.report["transforms"] if t["id"] == "balance_scheduling"]
    files = {f["path"]: (f["added"], f["removed"]) for f in transform["files"]}
    assert files == {
        "vllm/v1/core/sched/scheduler.py": (13, 0),
        "vllm/v1/engine/core.py": (2, 0),
    }
    assert DPMoEEngineCoreActor.run_busy_loop is DPEngineCoreProc.run_busy_loop
    assert AsyncScheduler.schedule is Scheduler.schedule


# What a copy of an older `schedule` got wrong, with balancing on and the counts at zero.


def test_one_place_is_enough_to_be_scheduled(on) -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add_request(make_request("0"))
    scheduler.balance_counts = [0]
    assert step(scheduler) == {"0": 10}


def test_request_with_a_ready_grammar_runs(on) -> None:
    scheduler = make_scheduler(ranks=2)
    grammar = StructuredOutputsParams(json="{}")
    request = make_request(
        "0", sampling_params=SamplingParams(max_tokens=4, structured_outputs=grammar)
    )
    scheduler.add_request(request)
    assert list(scheduler.skipped_waiting) == [request]
    assert step(scheduler) == {}
    request.structured_output_request.grammar = Mock()
    assert step(scheduler) == {"0": 10}


def test_session_with_streamed_input_goes_on(on) -> None:
    scheduler = make_scheduler(ranks=2)
    for prompt, scheduled in ((10, {"0": 10}), (5, {"0": 5})):
        request = make_request("0", prompt=prompt, new=1, resumable=True)
        request.streaming_queue = deque()
        scheduler.add_request(request)
        assert step(scheduler) == scheduled
        assert scheduler.requests["0"].status == RequestStatus.WAITING_FOR_STREAMING_REQ
        assert step(scheduler) == {}


def test_remote_kv_is_waited_for(on) -> None:
    scheduler = make_scheduler(ranks=2)
    scheduler.connector = Mock()
    scheduler.connector.get_num_new_matched_tokens.return_value = (32, True)
    scheduler.connector.take_events.return_value = []
    request = make_request("0", prompt=40)
    scheduler.add_request(request)
    for _ in range(3):
        assert dict(scheduler.schedule().num_scheduled_tokens) == {}
        assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        assert request.num_computed_tokens == 32
    scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving={"0"}))
    assert dict(scheduler.schedule().num_scheduled_tokens) == {"0": 8}


def test_remote_kv_beyond_the_prompt_is_refused(on) -> None:
    scheduler = make_scheduler(ranks=2)
    scheduler.connector = Mock()
    scheduler.connector.get_num_new_matched_tokens.return_value = (50, True)
    scheduler.add_request(make_request("0", prompt=40))
    with pytest.raises(AssertionError):
        scheduler.schedule()


def test_encoder_cache_connector_is_told_of_both_kinds_of_input(on, monkeypatch) -> None:
    """Once in the queue of those that wait, and once among those that run."""
    scheduler = make_scheduler(ranks=2)
    scheduler.ec_connector, scheduler.encoder_cache_manager = Mock(), Mock()
    scheduler.encoder_cache_manager.get_freed_mm_hashes.return_value = []
    scheduler.encoder_cache_manager.get_cached_input_ids.return_value = set()
    features = [SimpleNamespace(identifier=name) for name in ("computed", "loaded")]
    request = make_request("0", mm_features=features)
    computed_and_loaded = ([0], 5, 0, [1])
    monkeypatch.setattr(
        scheduler, "_try_schedule_encoder_inputs", lambda *_, **__: computed_and_loaded
    )
    scheduler.add_request(request)
    for calls in (2, 4):
        scheduled = scheduler.schedule()
        assert dict(scheduled.num_scheduled_tokens) == {"0": 5}
        told = scheduler.ec_connector.update_state_after_alloc.call_args_list
        assert [call.args for call in told[-2:]] == [(request, 0), (request, 1)]
        assert len(told) == calls


def test_new_blocks_of_hybrid_models_are_zeroed(on) -> None:
    scheduler = make_scheduler(ranks=2, hybrid=True)
    scheduler.add_request(make_request("0", prompt=20))
    scheduled = scheduler.schedule()
    attention, _ = scheduled.scheduled_new_reqs[0].block_ids
    assert scheduled.new_block_ids_to_zero == list(attention)
    run_model(scheduler, scheduled)
    assert scheduler.schedule().new_block_ids_to_zero is None
