"""The scheduler."""

from __future__ import annotations

import os

from facts import fact


@fact
def balance_scheduling() -> bool:
    os.environ["VLLM_ASCEND_BALANCE_SCHEDULING"] = "1"
    from scheduler_kit import make_request, make_scheduler, step

    scheduler = make_scheduler(ranks=2)
    scheduler.balance_counts = [0, 3]
    scheduler.add_request(make_request("0"))
    return step(scheduler) == {}
