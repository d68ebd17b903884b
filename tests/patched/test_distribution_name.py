"""The renamed wheel: vLLM finds its own metadata, and its command line runs."""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import vllm
from patched_kit import python
from vllm.entrypoints.cli import run_batch
from vllm.platforms import vllm_version_matches_substr
from vllm.utils.import_utils import get_vllm_optional_dependencies

RENAMED = "vllm-ascend-patched"


def test_only_the_renamed_distribution_is_there() -> None:
    assert importlib.metadata.version(RENAMED).startswith("0.18.0+npu.")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    assert vllm.__version__ == "0.18.0"


@pytest.mark.parametrize(
    ("text", "found"), [("0.18.0", True), ("npu", True), ("cpu", False), ("tpu", False)]
)
def test_version_is_matched(text: str, found: bool) -> None:
    assert vllm_version_matches_substr(text) is found


def upstream_extras(base) -> set[str]:
    """Return the names of the extras in vLLM's setup.py."""
    tree = ast.parse(Path(base.root, "setup.py").read_text())
    (extras,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "extras_require"
    )
    return {key.value for key in extras.keys}


def test_optional_dependencies_are_listed(base) -> None:
    extras = get_vllm_optional_dependencies()
    assert set(extras) == upstream_extras(base) | {"npu"}
    assert extras["npu"] == ["torch", "torch-npu", "triton-ascend"]
    assert extras["tensorizer"] == ["tensorizer"]
    assert [name for name, packages in extras.items() if not packages] == ["video", "flashinfer"]


def test_run_batch_tells_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []

    def stop(text: str, *values: object) -> None:
        lines.append(text % values)
        raise StopIteration

    monkeypatch.setattr(run_batch.logger, "info", stop)
    with pytest.raises(StopIteration):
        run_batch.RunBatchSubcommand.cmd(argparse.Namespace())
    assert lines == [f"vLLM batch processing API version {importlib.metadata.version(RENAMED)}"]


PLATFORM = """
from vllm.platforms.interface import Platform, PlatformEnum


class TinyPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"


def register():
    return "tiny_platform.TinyPlatform"
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """A PYTHONPATH with a platform plugin: the command line wants some platform."""
    (tmp_path / "tiny_platform.py").write_text(PLATFORM)
    info = tmp_path / "tiny_platform-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-platform\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\ntiny = tiny_platform:register\n"
    )
    return os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])


def test_command_line(installed, plugin: str) -> None:
    commands = (
        (installed.site / "bin/vllm", "--version"),
        ("-m", "vllm.entrypoints.cli.main", "serve", "--help"),
    )
    with ThreadPoolExecutor() as pool:
        version, help_ = pool.map(lambda words: python(*words, PYTHONPATH=plugin), commands)
    assert version.returncode == 0, version.stderr
    assert version.stdout.strip() == importlib.metadata.version(RENAMED)
    assert help_.returncode == 0, help_.stderr
    assert "vllm serve [model_tag] [options]" in help_.stdout
