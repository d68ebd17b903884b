"""The worker rows of process groups and of the model runners' host side."""

from __future__ import annotations

from facts import fact


@fact
def hccl_group_options() -> bool:
    from vllm.distributed.parallel_state import GroupCoordinator

    return "pg_options" in GroupCoordinator.__init__.__code__.co_names


@fact
def group_all_to_all() -> bool:
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )
    from vllm.distributed.stateless_coordinator import StatelessGroupCoordinator

    both = (StatelessGroupCoordinator, DeviceCommunicatorBase)
    return all(callable(known.all_to_all) for known in both)
