"""Messages in vLLM's log: loggers below its own, so its handlers, format and level apply."""

from __future__ import annotations

import logging


def logger(name: str) -> logging.Logger:
    """Return the logger of a module of this package, given its `__name__`."""
    return logging.getLogger(f"vllm.{name}")
