"""The patched vLLM generates whole texts, on the test platform, as transformers does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from patched_kit import HERE, ROOT, python

PLATFORM = ROOT / "tests/platform"
FAMILIES = ("qwen3", "qwen3_moe", "mistral")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What both programs generate with each family, from one process."""
    site, work = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("models")
    sys.path.insert(0, str(PLATFORM))
    try:
        from torch_platform import install
    finally:
        sys.path.remove(str(PLATFORM))
    install(site)
    path = [str(site), str(PLATFORM), os.environ["PYTHONPATH"]]
    done = python(
        HERE / "generate_scene.py",
        work,
        *FAMILIES,
        timeout=300,
        PYTHONPATH=os.pathsep.join(path),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        HF_HOME=str(work),
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, dict] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(generated: dict, family: str) -> None:
    result = generated[family]
    assert result["longest"] > 32  # more than a chunk of prefill, two blocks, a sliding window
    assert result["vllm"] == result["transformers"]
    assert [len(tokens) for tokens in result["vllm"]] == [24] * 5
    assert len({token for tokens in result["vllm"] for token in tokens}) > 20


def test_package_is_self_contained(generated: dict, tmp_path: Path) -> None:
    """The entry point names a class that the installed folder has, and nothing else is written."""
    sys.path.insert(0, str(PLATFORM))
    try:
        from torch_platform import install, register
    finally:
        sys.path.remove(str(PLATFORM))
    install(tmp_path)
    module, _, name = register().rpartition(".")
    file = tmp_path / (module.replace(".", "/") + ".py")
    assert f"class {name}(" in file.read_text()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["torch_platform", "torch_platform-1.0.dist-info"]
