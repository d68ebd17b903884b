"""Reads a run as JSON; two data-parallel engines share its prompts; prints what each rank saw.

That is the tokens of its prompts, and of each step of its scheduler: the running requests of all
ranks that it knew of (null if it asks nobody), its own afterwards, and how many it admitted.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from offline_scene import DEFAULTS, ask
from vllm import LLM
from vllm.utils.network_utils import get_open_port
from vllm.v1.core.sched.scheduler import Scheduler

RANKS = 2


class Watched(Scheduler):
    """Notes each step in a file."""

    def schedule(self):
        known = self.balance_counts
        output = super().schedule()
        with Path(f"steps{self.parallel_config.data_parallel_rank}").open("a") as file:
            admitted = len(output.scheduled_new_reqs)
            file.write(json.dumps([known, len(self.running), admitted]) + "\n")
        return output


def work(rank: int, port: int, job: dict[str, Any], results: Any) -> None:
    """Be one rank: ask its prompts of its engine."""
    os.environ |= {
        "VLLM_DP_RANK": str(rank),
        "VLLM_DP_RANK_LOCAL": str(rank),
        "VLLM_DP_SIZE": str(RANKS),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }
    scheduler = f"{Path(__file__).stem}.Watched"
    llm = LLM(job["folder"], **{**DEFAULTS, **job["options"], "scheduler_cls": scheduler})
    mine = {"prompts": job["prompts"][rank], "sampling": job["sampling"][rank]}
    tokens = ask(llm, mine)["tokens"]
    results.put((rank, tokens))


def main() -> None:
    """Run all ranks to their end."""
    job = json.load(sys.stdin)
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), get_open_port()
    processes = [
        context.Process(target=work, args=(rank, port, job, results)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    try:
        tokens = dict(results.get(timeout=300) for _ in processes)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
    steps = [Path(f"steps{rank}") for rank in range(RANKS)]
    said = [
        {
            "tokens": tokens[rank],
            "steps": [json.loads(line) for line in file.read_text().splitlines()],
        }
        for rank, file in enumerate(steps)
    ]
    for file in steps:
        file.unlink()
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
