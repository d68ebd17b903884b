"""The vLLM release being edited: where it came from and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Base:
    """An opened vLLM source: a folder that holds `vllm/`, read only.

    `origin` is "sdist", "wheel", "tree" or "checkout"; `file` is the name of the archive (never a
    path), None for a folder; `sha256` is the archive's, or for a folder a digest of the sorted names
    and contents of `vllm/`; `version` is the PEP 440 version of vLLM; `commit` is the git commit of a
    checkout.
    """

    version: str
    sha256: str
    origin: str
    root: Path
    file: str | None = None
    commit: str | None = None
    name: str = "vllm"
