"""The patched vLLM under test, installed in a folder of its own, and ways to run code on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: No hub, no telemetry, no chatter; set while tests of this folder run, and for their children.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
PACKAGES = ("vllm", "ascend_runtime")


@dataclass(frozen=True)
class Installed:
    """The renamed wheel, installed with `pip install --target`, and the report of its build."""

    site: Path
    report: dict

    @property
    def edited(self) -> list[str]:
        """The edited files, as paths below the site folder."""
        return sorted({f["path"] for t in self.report["transforms"] for f in t["files"]})


def module_name(path: str) -> str:
    """Return the dotted name of the module in a file."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def install(work: Path) -> Installed:
    """Build the wheel (or take $PATCHED_WHEEL) and install it below `work`."""
    _refuse_other_vllm()
    given = os.environ.get("PATCHED_WHEEL")
    wheel = Path(given) if given else _build(work / "dist")
    site = work / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-index", "--no-deps", "--no-compile", "--target", site, wheel]
    _checked(pip)
    report = wheel.with_name("report.json")
    if not report.is_file():
        raise pytest.UsageError(f"report.json of the build must lie beside {wheel.name}")
    return Installed(site, json.loads(report.read_text("utf-8")))


def _refuse_other_vllm() -> None:
    for name in ("vllm", "vllm-ascend-patched"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise pytest.UsageError(
            f"{name} {version} is installed here; tests/patched brings its own vLLM and must not"
            f" see another: run it in an environment without {name}"
        )
    if importlib.util.find_spec("torch") is None:
        raise pytest.UsageError(
            "tests/patched runs the patched vLLM and needs torch and the packages of vLLM's"
            " requirements/common.txt in this environment"
        )


def _build(out: Path) -> Path:
    _checked([sys.executable, ROOT / "scripts/build_patched_vllm.py", "--out", out])
    (wheel,) = out.glob("vllm_ascend_patched-*.whl")
    return wheel


def _checked(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"{command[1:4]} failed:\n{done.stdout}{done.stderr}")


class Switch:
    """Puts the wheel's `vllm` and `ascend_runtime` in place, and what was there back again.

    Tests elsewhere import `ascend_runtime` from the source tree, those of this folder from the
    wheel, all in one process.
    """

    def __init__(self, site: Path) -> None:
        self._path = [str(HERE), str(site)]
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Import from the wheel within this context."""
        environment = dict(os.environ)
        path = list(sys.path)
        others = self._swap(self._modules)
        sys.path[:0] = self._path
        os.environ.update(ENVIRONMENT, PYTHONPATH=os.pathsep.join(self._path))
        try:
            yield
        finally:
            sys.path[:] = path
            os.environ.clear()
            os.environ.update(environment)
            self._modules = self._swap(others)

    @staticmethod
    def _swap(put: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        taken = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in PACKAGES}
        for name in taken:
            del sys.modules[name]
        sys.modules.update(put)
        return taken


def fresh(name: str) -> ModuleType:
    """Execute a module again, apart from the one in sys.modules, and return the new one."""
    return _executed(importlib.util.find_spec(name))


def pristine(base: Path, path: str) -> ModuleType:
    """Execute an unedited file of the base as a module of its own, beside the edited one."""
    package, _, name = module_name(path).rpartition(".")
    where = base / path
    return _executed(importlib.util.spec_from_file_location(f"{package}.pristine_{name}", where))


def _executed(spec: ModuleSpec | None) -> ModuleType:
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(
    *arguments: str | Path, timeout: float = 120, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter that sees the wheel; one that hangs is killed with its children."""
    environment = {**os.environ, **env}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the next one starts faster
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"still running after {timeout} s\n{out}{err}")
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def npu_scene(file: str, name: str) -> Any:
    """Run a scene of a file in this folder where the device of type "npu" can be loaded.

    It prints one line of JSON, last of all, which is returned.
    """
    path = [os.environ["PYTHONPATH"], *map(str, (ROOT / "tests/platform", ROOT / "tests", ROOT))]
    done = python(HERE / file, name, PYTHONPATH=os.pathsep.join(path), timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def forks(jobs: Mapping[str, str]) -> dict[str, str]:
    """Run pieces of code, each in a process where vllm was never imported, and return the output.

    They are forks of one interpreter that has imported torch, which takes most of the time.
    """
    done = python(HERE / "fork_runner.py", stdin=json.dumps(jobs))
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout)
    return results
