"""Streams and events, which come from the platform."""

from __future__ import annotations

from facts import fact


@fact
def platform_streams() -> bool:
    from vllm.distributed.weight_transfer.packed_tensor import packed_broadcast_producer

    return "current_platform" in packed_broadcast_producer.__code__.co_names
