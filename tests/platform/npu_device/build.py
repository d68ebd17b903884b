"""Builds the C++ half once for each combination of sources, torch, Python and compiler."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
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
    parts += [str(sysconfig.get_config_var("EXT_SUFFIX")), platform.machine()]
    command = _compiler()
    parts += [_compiler_version(command), *command[1:]]
    for part in parts:
        digest.update(part.encode() + b"\0")
    for file in sorted(sources.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compiler() -> list[str]:
    """Return the compiler's command: $CXX, split as a shell would, for it may have arguments."""
    chosen = os.environ.get("CXX", "")
    try:
        return shlex.split(chosen) or ["g++"]
    except ValueError as error:
        raise RuntimeError(f"CXX={chosen} is no command: {error}") from error


def _compiler_version(command: list[str]) -> str:
    needed = "a C++ compiler is needed"
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"{needed}: {error}; install g++") from error
    if done.returncode:
        said = done.stderr.strip().partition("\n")[0] or f"exit status {done.returncode}"
        raise RuntimeError(f"{needed}: {shlex.join(command)}: {said}; install g++, or change CXX")
    return done.stdout.partition("\n")[0]


def _one_word(command: list[str], folder: Path) -> dict[str, str]:
    """Return the settings that make torch's builder use a command; it takes $CXX as one word."""
    if len(command) == 1:
        return {"CXX": command[0]}
    script = folder / "cxx"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    # The command may be a cache of compilations already; torch would put another before it.
    return {"CXX": str(script), "TORCH_NO_COMPILER_WRAPPER": "1"}


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
    environment = {**os.environ, "PATH": path, **_one_word(_compiler(), folder)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    built = folder / f"{NAME}.so"
    if done.returncode or not built.is_file():
        raise RuntimeError(f"the npu device cannot be built:\n{done.stdout}{done.stderr}")
    return built
