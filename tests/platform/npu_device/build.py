"""Builds the C++ half once for each combination of sources, torch, Python and compiler."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from rewriter.cache import Cache

NAME = "npu_device_native"
_SOURCES = Path(__file__).with_name("csrc")
_FLAGS = ["-O1", "-Wall"]


@cache
def extension() -> ModuleType:
    """Return the C++ half, built now if it never was.

    Raises RuntimeError with the compiler's output if it cannot be built.
    """
    spec = importlib.util.spec_from_file_location(NAME, library())
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library(sources: Path = _SOURCES, shared: Cache | None = None) -> Path:
    """Return the built library; of several processes that need it, one builds and the others wait.

    A library appears under its name when it is whole, so a killed build leaves none.
    """
    shared = shared or Cache.default()
    key = _key(sources)
    with shared.lock(f"{NAME}-{key}"):
        target = shared.folder / "built" / f"{NAME}-{key}" / f"{NAME}.so"
        if not target.is_file():
            with shared.work(NAME) as folder:
                built = _build(sources, folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                built.replace(target)
    return target


def _key(sources: Path) -> str:
    """Return a digest of all that the library depends on."""
    digest = hashlib.sha256()
    parts = [torch.__version__, str(torch._C._GLIBCXX_USE_CXX11_ABI), *_FLAGS]
    parts += [str(sysconfig.get_config_var("EXT_SUFFIX")), platform.machine(), _compiler_version()]
    for part in parts:
        digest.update(part.encode() + b"\0")
    for file in sorted(sources.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _compiler_version() -> str:
    try:
        done = subprocess.run([_compiler(), "--version"], capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"a C++ compiler is needed: {error}; install g++") from error
    return done.stdout.partition("\n")[0]


def _build(sources: Path, folder: Path) -> Path:
    """Compile in a process of its own, which may be killed; torch's builder keeps global state."""
    code = f"""
from pathlib import Path
from torch.utils.cpp_extension import load
files = sorted(map(str, Path({str(sources)!r}).glob("*.cpp")))
load({NAME!r}, files, extra_cflags={_FLAGS!r}, build_directory={str(folder)!r},
     is_python_module=False, is_standalone=False, verbose=True)
"""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PATH": path}, cwd=folder
    )
    built = folder / f"{NAME}.so"
    if done.returncode or not built.is_file():
        raise RuntimeError(f"the npu device cannot be built:\n{done.stdout}{done.stderr}")
    return built
