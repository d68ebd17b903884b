"""Under which name this vLLM was installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

RENAMED = "vllm-ascend-patched"
DROP_IN = "vllm"


@cache
def name() -> str:
    """Return the name of the distribution that vLLM came in.

    "vllm-ascend-patched" where that is installed, otherwise "vllm" (also where neither is, as in a
    source tree: then `importlib.metadata` reports "vllm" as missing, as it would upstream).
    """
    try:
        distribution(RENAMED)
    except PackageNotFoundError:
        return DROP_IN
    return RENAMED
