"""The name of the distribution that vLLM came in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_runtime import distribution

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Leave only these distributions to be found."""

    def these(*names: str) -> None:
        for name in names:
            info = tmp_path / f"{name.replace('-', '_')}-0.18.0.dist-info"
            info.mkdir()
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.18.0\n"
            (info / "METADATA").write_text(head)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        distribution.name.cache_clear()

    yield these
    distribution.name.cache_clear()


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["vllm-ascend-patched"], "vllm-ascend-patched"),
        (["vllm"], "vllm"),
        (["vllm-ascend"], "vllm"),
        (["vllm", "vllm-ascend-patched"], "vllm-ascend-patched"),
        ([], "vllm"),
    ],
)
def test_name(install: Install, names: list[str], name: str) -> None:
    install(*names)
    assert distribution.name() == name


def test_it_is_looked_up_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("vllm-ascend-patched")
    assert distribution.name() == "vllm-ascend-patched"
    monkeypatch.setattr(sys, "path", [])
    assert distribution.name() == "vllm-ascend-patched"
