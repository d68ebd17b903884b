"""Random work for a scheduler, and every decision it takes; also runs on the pristine vLLM."""

from __future__ import annotations

import random
from types import SimpleNamespace

from scheduler_kit import make_request, make_scheduler, run_model
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

STEPS = 120


def random_request(number: int, rng: random.Random) -> Request:
    """A request of any length, one in four with a grammar that is not ready yet."""
    more: dict = {"priority": rng.randrange(3), "arrival_time": float(number)}
    new = rng.randint(1, 24)
    if rng.random() < 0.25:
        grammar = StructuredOutputsParams(json="{}")
        more["sampling_params"] = SamplingParams(
            max_tokens=new, ignore_eos=True, structured_outputs=grammar
        )
    return make_request(str(number), prompt=rng.randint(1, 120), new=new, **more)


def plain(decision: object) -> object:
    """Return the fields of a decision, with sets in the order of their items."""
    if isinstance(decision, set):
        return sorted(decision)
    if isinstance(decision, SchedulerOutput | CachedRequestData):
        return {name: plain(value) for name, value in vars(decision).items()}
    return decision


def play(kind: type[Scheduler], policy: str) -> str:
    """Return what the scheduler decided in each step, as text."""
    rng = random.Random(5)
    scheduler = make_scheduler(kind, num_blocks=14, policy=policy)
    lines = []
    grammar = SimpleNamespace(accept_tokens=lambda name, tokens: True)
    for number in range(STEPS):
        if rng.random() < 0.4:
            scheduler.add_request(random_request(number, rng))
        for request in scheduler.requests.values():
            if request.structured_output_request and rng.random() < 0.3:
                request.structured_output_request.grammar = grammar
        if scheduler.requests and rng.random() < 0.05:
            name = rng.choice(list(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        scheduled = scheduler.schedule()
        run_model(scheduler, scheduled)
        lines.append(f"{number} {plain(scheduled)} {scheduler.get_request_counts()}")
    return "\n".join(lines)


def transcript() -> str:
    """Play with both schedulers and both policies."""
    games = [play(k, p) for k in (Scheduler, AsyncScheduler) for p in ("fcfs", "priority")]
    return "\n".join(games)


if __name__ == "__main__":
    print(transcript())
