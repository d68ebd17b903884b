"""What the edited scheduler and busy loop ask so that data-parallel ranks admit work together.

Ranks of a mixture-of-experts model run in lock step: one that prefills slows the decoding of all.
So each tells the others after every step how many requests it runs, and none admits more while one
of them is full, or full but for one. Nothing here depends on the device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

_SWITCH = "VLLM_ASCEND_BALANCE_SCHEDULING"


def enabled(env: Mapping[str, str] = os.environ) -> bool:
    """Whether VLLM_ASCEND_BALANCE_SCHEDULING is 1; 0, empty and unset mean no.

    It must be the same on all ranks. `env` is read at each call. Raises ValueError for anything
    else.
    """
    value = env.get(_SWITCH, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"{_SWITCH}={value!r}: it must be 1 (on) or 0 (off)")
    return value == "1"


def initial_counts(dp_size: int) -> list[int] | None:
    """Return the running requests of `dp_size` ranks before anything ran; None if switched off."""
    return [0] * dp_size if enabled() else None


def hold(counts: Sequence[int] | None, max_num_seqs: int) -> bool:
    """Whether no rank is to admit requests in this step.

    So it is while a rank runs at least `max_num_seqs` - 1 requests, and at least one: with a limit
    of 1 an idle rank would hold for ever. `counts` are the running requests of each rank, or None,
    which never holds.
    """
    return counts is not None and max(counts) >= max(1, max_num_seqs - 1)


def gather(local_running: int, group: torch.distributed.ProcessGroup) -> list[int]:
    """Return the running requests of all ranks of the group, in the order of ranks.

    All ranks must call it together. The group moves an int32 of one element on the CPU; it is asked
    for its size each time, since elastic scaling changes it.
    """
    mine = torch.tensor([local_running], dtype=torch.int32)
    all_ranks = [torch.empty_like(mine) for _ in range(group.size())]
    torch.distributed.all_gather(all_ranks, mine, group=group)
    return [int(count.item()) for count in all_ranks]


def after_step(scheduler: object, group: torch.distributed.ProcessGroup) -> None:
    """Have the scheduler gather, once in each iteration that ran the model or a dummy batch.

    Does nothing if balancing is off, and for a scheduler that is not derived from vLLM's own and
    has no `balance_gather`.
    """
    if getattr(scheduler, "balance_counts", None) is None:
        return
    gather_counts = getattr(scheduler, "balance_gather", None)
    if gather_counts is not None:
        gather_counts(group)
