"""Memory that is pinned where it can be."""

from __future__ import annotations

import inspect

from facts import fact


@fact
def pinned_memory() -> bool:
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    source = inspect.getsource(StagedWriteTensor.apply_write)
    return "pin_memory=is_pin_memory_available()" in source
