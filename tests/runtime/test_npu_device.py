"""The device of type "npu" on host memory: what npu_cases.py asks of it, and how it is built."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewriter.cache import Cache

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLATFORM = ROOT / "tests/platform"
NAMES = [
    node.name
    for file in ("npu_tensor_cases.py", "npu_program_cases.py")
    for node in ast.parse((HERE / file).read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.args.args
]
# A C++ half of no size, which is built in a second.
SMALL = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "npu_device_native", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_npu_device_native() { return PyModule_Create(&module); }
"""
BUILD = """
import sys
from pathlib import Path
from npu_device import build
from rewriter.cache import Cache
print(build.library(Path(sys.argv[1]), Cache(Path(sys.argv[2]))))
"""


def start(*arguments: str | Path, **env: str) -> subprocess.Popen[str]:
    """Start Python with the device's package on its path, in a group of processes of its own."""
    path = os.pathsep.join([str(ROOT), str(PLATFORM)])
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **env},
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """What each case says, empty if all is well; all are run in one process."""
    process = start(HERE / "npu_cases.py")
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_device(results: dict[str, str], name: str) -> None:
    assert results[name] == "", results[name]


def test_no_case_is_forgotten(results: dict[str, str]) -> None:
    assert set(results) == set(NAMES) and len(NAMES) > 25


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "small.cpp").write_text(SMALL)
    return folder


def build(sources: Path, cache: Path, **env: str) -> subprocess.Popen[str]:
    return start("-c", BUILD, sources, cache, **env)


def finished(process: subprocess.Popen[str]) -> Path:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return Path(out.splitlines()[-1])


def test_concurrent_processes_build_once(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (first, second) = map(finished, [build(sources, cache), build(sources, cache)])
    assert first == second and first.is_file()
    built, times = first.stat().st_mtime_ns, sorted(first.parent.iterdir())
    assert times == [first]
    assert finished(build(sources, cache)).stat().st_mtime_ns == built
    (sources / "small.cpp").write_text(SMALL + "// changed\n")
    changed = finished(build(sources, cache))
    assert changed != first and changed.is_file() and first.is_file()


def test_killed_build_leaves_nothing_behind(sources: Path, tmp_path: Path) -> None:
    cache, compiler = tmp_path / "cache", tmp_path / "slow"
    compiler.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && exec g++ $1\ntouch {tmp_path}/compiling\nsleep 60\n"
    )
    compiler.chmod(0o755)
    process = build(sources, cache, CXX=str(compiler))
    while not (tmp_path / "compiling").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, 9)
    process.communicate()
    assert not list(cache.rglob("*.so"))
    assert finished(build(sources, cache)).is_file()
    assert not list((cache / "work").iterdir())  # what the killed one left is gone


def test_compiler_error_is_told(sources: Path, tmp_path: Path) -> None:
    (sources / "small.cpp").write_text("int broken(")
    process = build(sources, tmp_path / "cache")
    err = process.communicate(timeout=200)[1]
    assert process.returncode == 1 and "the npu device cannot be built" in err
    assert "small.cpp:1" in err


def test_missing_compiler_is_told(sources: Path, tmp_path: Path) -> None:
    process = build(sources, tmp_path / "cache", CXX=str(tmp_path / "none"))
    assert "a C++ compiler is needed" in process.communicate(timeout=200)[1]


def test_compiler_with_arguments(sources: Path, tmp_path: Path) -> None:
    """Like "ccache g++": a program that runs another, and arguments that a shell would unquote."""
    wrapper, calls, cache = tmp_path / "a wrapper", tmp_path / "calls", tmp_path / "cache"
    wrapper.write_text(f'#!/bin/sh\necho "$2" >> {calls}\nexec "$@"\n')
    wrapper.chmod(0o755)
    command = f"'{wrapper}' g++ -DSPACED='a b'"
    (sources / "small.cpp").write_text(SMALL + "\n#ifndef SPACED\n#error\n#endif\n")
    built = finished(build(sources, cache, CXX=command))
    assert built.is_file()
    # Asked for its version, and run to compile and to link at least.
    assert calls.read_text().splitlines().count("-DSPACED=a b") >= 3
    (sources / "small.cpp").write_text(SMALL)
    plain = finished(build(sources, cache, CXX="g++"))
    assert plain != finished(build(sources, cache, CXX="g++ -O2"))
    assert plain == finished(build(sources, cache, CXX=" "))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("g++ 'open", "CXX=g++ 'open is no command: No closing quotation"),
        ("env nowhere++", "a C++ compiler is needed: env nowhere++: env: "),
        ("sh -c 'exit 3'", "a C++ compiler is needed: sh -c 'exit 3': exit status 3; install g++"),
    ],
)
def test_odd_compiler_is_told(sources: Path, tmp_path: Path, command: str, line: str) -> None:
    process = build(sources, tmp_path / "cache", CXX=command)
    assert f"RuntimeError: {line}" in process.communicate(timeout=200)[1]
    assert not list(tmp_path.rglob("*.so"))


def test_cache_is_cleaned_of_it(sources: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert finished(build(sources, cache.folder)).is_relative_to(cache.folder)
    cache.clean()
    assert not cache.folder.exists()


def test_second_load_and_foreign_backend() -> None:
    code = "import npu_device, torch; npu_device.load(); npu_device.load(); torch.ones(1).npu()"
    process = start("-c", code)
    assert process.communicate(timeout=100)[1] == "" and process.returncode == 0
    code = (
        "import npu_device, torch; torch.utils.rename_privateuse1_backend('foo'); npu_device.load()"
    )
    process = start("-c", code)
    assert "torch's out-of-tree backend is 'foo' already" in process.communicate(timeout=100)[1]


def test_statistics_of_torch_accelerator() -> None:
    code = """
import npu_device, torch
npu_device.load(devices=1, memory=1 << 20, statistics=True)
x = torch.zeros(1000, device="npu")
torch.accelerator.empty_cache()
print(torch.accelerator.memory_allocated(), torch.accelerator.max_memory_allocated(),
      torch.accelerator.memory_reserved(), torch.accelerator.get_memory_info(),
      torch.accelerator.memory_stats()["allocation.all.current"])
del x
torch.accelerator.reset_peak_memory_stats()
print(torch.accelerator.max_memory_allocated())
"""
    process = start("-c", code)
    out, err = process.communicate(timeout=100)
    assert out.splitlines() == ["4000 4000 4000 (1044576, 1048576) 1", "0"], err
