"""Streams, events and graphs, which come from the platform."""

from __future__ import annotations

from facts import fact


@fact
def platform_streams() -> bool:
    from vllm.distributed.weight_transfer.packed_tensor import packed_broadcast_producer

    return "current_platform" in packed_broadcast_producer.__code__.co_names


@fact
def graph_helpers() -> bool:
    from vllm.v1.worker.gpu import async_utils

    return "ascend_runtime" in async_utils.stream.__wrapped__.__code__.co_names
