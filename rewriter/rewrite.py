"""Base and transforms in, edited files and one outcome per transform out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewriter.outcome import Result


@dataclass(frozen=True)
class Rewritten:
    """What a rewrite gave. Paths are "vllm/..." with forward slashes; only edited files are listed.

    `results` are sorted by transform id. `files` is the whole edit; `alone[id]` is what each applied
    transform does to the pristine base by itself (after its declared prerequisites); `series` is the
    applied transforms in patch order, each with the files it touches as they are after it.
    """

    results: tuple[Result, ...]
    files: Mapping[str, bytes]
    alone: Mapping[str, Mapping[str, bytes]]
    series: tuple[tuple[str, Mapping[str, bytes]], ...]
