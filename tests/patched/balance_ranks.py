"""Two data-parallel engines in processes of their own, on vLLM's busy loop and its gloo group.

Only the model runs elsewhere: nowhere. Writes what each rank saw, an entry for each iteration, as
JSON: [[waiting, admitted, running, counts gathered], ...] and what it was told to do.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import torch
from scheduler_kit import make_request, make_scheduler, run_model
from vllm.v1.engine.core import DPEngineCoreProc

RANKS = 2
#: The requests of each rank, by the iteration before which they come, with their lengths.
ARRIVALS = (
    {1: {"a0": 2, "a1": 3, "a2": 8, "a3": 8, "a4": 8}},
    {1: {"b0": 8}, 2: {"b1": 8, "b2": 8, "b3": 8}},
)


class Engine(DPEngineCoreProc):
    """The busy loop of a data-parallel engine, with requests from a list and no model."""

    def __init__(self, rank: int, scheduler) -> None:
        self.arrivals = ARRIVALS[rank]
        self.scheduler = scheduler
        self.iterations: list[list] = []
        self.dummies = 0
        self.vllm_config = scheduler.vllm_config
        self.step_counter = self.current_wave = 0
        self.engines_running = self.publish_dp_lb_stats = False
        self.eep_scaling_state = None
        self.has_coordinator = True
        self.output_queue = SimpleNamespace(put_nowait=lambda output: None)
        parallel = self.vllm_config.parallel_config
        parallel.data_parallel_rank = parallel.data_parallel_rank_local = rank
        self._init_data_parallel(self.vllm_config)

    def _handle_shutdown(self) -> bool:
        if self.iterations:
            self.iterations[-1].append(self.scheduler.balance_counts)
        return self.current_wave == 0

    def _process_input_queue(self) -> None:
        requests = self.arrivals.get(len(self.iterations) + 1, {})
        for name, new in requests.items():
            self.scheduler.add_request(make_request(name, new=new))

    def _process_engine_step(self) -> bool:
        _, waiting = self.scheduler.get_request_counts()
        scheduled = self.scheduler.schedule()
        admitted = len(scheduled.scheduled_new_reqs)
        before = len(self.scheduler.running)
        run_model(self.scheduler, scheduled)
        self.iterations.append([waiting, admitted, before])
        return scheduled.total_num_scheduled_tokens > 0

    def execute_dummy_batch(self) -> None:
        self.dummies += 1


def play(rank: int, scheduler, pipe: int) -> None:
    engine = Engine(rank, scheduler)
    try:
        engine.run_busy_loop()
    except SystemExit:
        answer = {"iterations": engine.iterations, "dummies": engine.dummies}
        os.write(pipe, json.dumps(answer).encode())
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    scheduler = make_scheduler(ranks=RANKS, max_num_seqs=4)
    pipes = []
    for rank in range(RANKS):
        receive, send = os.pipe()
        if os.fork() == 0:
            play(rank, scheduler, send)
        os.close(send)
        pipes.append(receive)
    answers = [json.loads(os.fdopen(pipe).read()) for pipe in pipes]
    for _ in range(RANKS):
        os.wait()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
