"""Errors that end a build, and the one table of exit statuses."""

from __future__ import annotations

import enum


class ExitStatus(enum.IntEnum):
    """What the exit status of `build_patched_vllm.py` says."""

    OK = 0
    EDITS_FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


class RewriterError(Exception):
    """Ends a build with one line for the user.

    The message says what is wrong and what to do about it, without a traceback, a password, or a
    second line. `status` is the exit status of the process.
    """

    status = ExitStatus.BAD_INPUT
