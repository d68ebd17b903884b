"""Say what is going on: a live line on a terminal, plain lines otherwise; always on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

_WARNING = "warning: "


class Progress:
    """Reports the stages of a build."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.quiet = quiet

    def say(self, message: str) -> None:
        """Print one line; when quiet, only a warning."""
        if not self.quiet or message.startswith(_WARNING):
            self._print(message)

    def warn(self, message: str) -> None:
        """Print a warning, also when quiet."""
        self._print(f"{_WARNING}{message}")

    def _print(self, message: str) -> None:
        with suppress(OSError):  # progress that nobody can read stops no build
            self.console.print(message, markup=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show that a stage runs, and afterwards how long it took."""
        begin = time.perf_counter()
        if self.console.is_terminal and not self.quiet:
            with self.console.status(name):
                yield
        else:
            yield
        self.say(f"{name}: {time.perf_counter() - begin:.1f} s")
