"""What the manifest refuses; the wheels' own tests look at what it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.base import Base
from rewriter.errors import RewriterError
from rewriter.manifest import manifest

BASE = Base("0.18.0", "ab" * 32, "sdist", Path(), file="vllm-0.18.0.tar.gz")


def made(base: Base, *names: str) -> bytes:
    files = dict.fromkeys(names, b"")
    return manifest(base, [], [], files, version="0.18.0+npu.1", project_version="1")


def test_names_of_any_language() -> None:
    assert set(json.loads(made(BASE, "vllm/a.py", "vllm/昇腾.py"))["files"]) == {
        "vllm/a.py",
        "vllm/昇腾.py",
    }


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (BASE, ["vllm/a.py", "vllm/b\udcff.py"]),
        (replace(BASE, file="vllm\udcff.tar.gz"), ["vllm/a.py"]),
    ],
)
def test_names_that_are_not_utf8(base: Base, names: list[str]) -> None:
    with pytest.raises(RewriterError, match=r"not UTF-8, 'vllm.*udcff.*; rename that file") as got:
        made(base, *names)
    assert str(got.value).isascii() and "\n" not in str(got.value)
