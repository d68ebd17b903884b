"""What shows each applied transform in the process that asks: a function for each, by its id.

A test calls `collect` in a spawned process, where nothing has been imported or patched before. The
functions are in the modules of this package, one for each topic.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

FACTS: dict[str, Callable[[], object]] = {}


def fact(function: Callable[[], object]) -> Callable[[], object]:
    """Register a function; it returns True where the edit is seen."""
    FACTS[function.__name__] = function
    return function


def collect() -> dict[str, object]:
    """Ask all; what raises is told as text."""
    return {name: _ask(function) for name, function in FACTS.items()}


def _ask(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:
        return repr(error)


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
