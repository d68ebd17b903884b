"""The wheels of a real build, installed beside everything that vLLM requires.

A virtual environment of its own sees the packages of the running one through a .pth file, so that
nothing is installed into the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
import tiny_platform

from rewriter import __version__

ROOT = Path(__file__).resolve().parents[2]
FORMS = {"renamed": "vllm_ascend_patched", "drop-in": "vllm"}
LABELLED = f"0.18.0+npu.{__version__}"
TRANSFORMS = sorted(path.stem for path in (ROOT / "rewriter/transforms").glob("[!_]*.py"))


def run(command: list[object], **kwargs: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def build(out: Path, **env: str) -> dict[str, str]:
    """Build with the script; return the artefacts and their sha256."""
    command = [sys.executable, ROOT / "scripts/build_patched_vllm.py", "--out", out, "--json"]
    done = run(command, env={**os.environ, **env}, cwd=out.parent)
    return json.loads(done.stdout)["artifacts"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("full") / "dist"
    build(out)
    return out


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "venv"
    # Without pip, for its old setuptools would hide the one that torch requires.
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "all_requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture(params=FORMS, scope="module")
def installed(request, dist: Path, venv: Path):
    """One form at a time: its name, the wheel, and the venv that it is installed in."""
    name = FORMS[request.param]
    (wheel,) = dist.glob(f"{name}-*.whl")
    before = tree(venv)
    pip(venv, "install", "-q", "--no-deps", "--no-index", wheel)
    yield name, wheel, venv
    pip(venv, "uninstall", "-q", "-y", name)
    assert tree(venv) == before, "uninstalling leaves something behind"


def pip(venv: Path, *args: object) -> str:
    return run([sys.executable, "-m", "pip", "--python", venv / "bin/python", *args]).stdout


def tree(venv: Path) -> set[str]:
    return {str(p.relative_to(venv)) for p in venv.rglob("*") if "__pycache__" not in p.parts}


def python(venv: Path, code: str, **env: str) -> str:
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [venv / "bin/python", "-c", code]
    return run(command, env={**os.environ, **quiet, **env}, cwd=venv).stdout.strip()


def test_pip_check(installed) -> None:
    _, _, venv = installed
    assert "No broken requirements found" in pip(venv, "check")


def test_import(installed) -> None:
    _, _, venv = installed
    assert python(venv, "import vllm; print(vllm.__version__)") == "0.18.0"


def test_optional_dependencies_list_all_extras(installed) -> None:
    _, wheel, venv = installed
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = BytesParser().parsebytes(archive.read(name))
    code = (
        "import json; from vllm.utils.import_utils import get_vllm_optional_dependencies as f;"
        "print(json.dumps(f()))"
    )
    found = json.loads(python(venv, code))
    assert sorted(found) == sorted(metadata.get_all("Provides-Extra"))
    assert len(found) == 14
    assert found["npu"] == ["torch", "torch-npu", "triton-ascend"]
    assert found["bench"] == ["pandas", "matplotlib", "seaborn", "datasets", "scipy", "plotly"]


def test_command_line_starts_with_a_platform_plugin(installed, tmp_path: Path) -> None:
    _, _, venv = installed
    tiny_platform.install(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    version = run([venv / "bin/vllm", "--version"], env=env, cwd=venv).stdout
    assert version.splitlines()[-1] == LABELLED
    assert "usage: vllm serve" in run([venv / "bin/vllm", "serve", "--help"], env=env).stdout


def test_doctor_is_content(installed) -> None:
    _, _, venv = installed
    done = subprocess.run(
        [venv / "bin/python", "-m", "ascend_runtime", "--json"],
        cwd=venv,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert {finding["check"] for finding in report["findings"]} <= {"two-tritons"}
    assert report["base"]["version"] == "0.18.0"
    assert [transform["id"] for transform in report["transforms"]] == TRANSFORMS


def test_two_builds_are_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """Another folder, time zone, locale, umask and hash seed."""
    there = tmp_path / "a" / "deeper folder"
    there.mkdir(parents=True)
    before = os.umask(0o077)
    try:
        artifacts = build(
            there / "out", TZ="Asia/Kolkata", LANG="C", LC_ALL="C", PYTHONHASHSEED="7"
        )
    finally:
        os.umask(before)
    first = json.loads((dist / "report.json").read_text())["artifacts"]
    assert artifacts == first
    # two wheels, the page, and two patches of each transform but those that upstream has
    upstream = {"full_graph_dispatch", "routed_experts_device"}
    assert len(artifacts) == 2 + 1 + 2 * len(set(TRANSFORMS) - upstream)
    for name in ("report.json", "report.html"):
        assert (there / "out" / name).read_bytes() == (dist / name).read_bytes()
