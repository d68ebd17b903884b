"""Runs a function on every rank of a gloo world, each in a fork of this process."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")


def run(job: Callable[[int], Any], ranks: int, folder: Path) -> list[Any]:
    """Return what `job(rank)` returned on each rank, in their order; fail if it raised.

    The ranks meet in `folder`, which must be new; what they return is pickled.
    """
    results = FORK.Queue()
    workers = [
        FORK.Process(target=_rank, args=(job, rank, ranks, folder / "store", results))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    answers = {}
    for _ in workers:
        rank, answer, error = results.get(timeout=120)
        assert not error, f"rank {rank}: {error}"
        answers[rank] = answer
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * ranks
    return [answers[rank] for rank in range(ranks)]


def _rank(
    job: Callable[[int], Any], rank: int, ranks: int, store: Path, results: multiprocessing.Queue
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
        results.put((rank, job(rank), ""))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        results.put((rank, None, traceback.format_exc()))
