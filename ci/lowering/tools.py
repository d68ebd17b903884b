"""The compilers: installed once into the cache folder, apart from any other Triton."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from rewriter.cache import Cache
from rewriter.errors import RewriterError

TRITON_ASCEND = "3.2.0"
PYBIND11 = "3.1.0"  # triton-ascend imports it and does not require it
#: The unified buffer of an A2 or A3 vector core, in bits.
UB_BITS = 1572864
#: A folder for PATH with what stands in for CANN's last step.
SHIM = Path(__file__).parent


def install(ir: str, cache: Cache | None = None) -> Path:
    """Return the folder with triton-ascend and ascendnpu-ir `ir`; RewriterError if it fails."""
    shared = cache or Cache.default()
    name = f"ascend-{TRITON_ASCEND}-{ir}-py{sys.version_info.major}{sys.version_info.minor}"
    target = shared.folder / "built" / name
    with shared.lock(name):
        if not target.is_dir():
            with shared.work("ascend") as work:
                _pip(work / name, ir)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(work / name, target)
    return target


def _pip(folder: Path, ir: str) -> None:
    packages = [f"triton-ascend=={TRITON_ASCEND}", f"ascendnpu-ir=={ir}", f"pybind11=={PYBIND11}"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(folder)]
    done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RewriterError(
            f"{', '.join(packages)} cannot be installed for Python {sys.version.split()[0]}: "
            f"{lines[-1] if lines else 'pip failed'}. It takes a Python from 3.9 to 3.11, and a"
            " package index that pip can reach"
        )
