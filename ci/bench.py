"""Print how long a build takes, stage by stage, beside what it is compared with.

usage: python ci/bench.py [--repeat N]

One run prints: the floor (libcst parse and print of the whole touched files), the rewrite stage,
the whole build from a cached sdist with its peak memory, and, where this interpreter has torch, the
time to build the unpatched vLLM its own way (VLLM_TARGET_DEVICE=empty, no isolation). Times are
wall clock, the best of N.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import libcst as cst  # noqa: E402

from rewriter.base import DEFAULT_VERSION, KNOWN_SDISTS, Base, open_base  # noqa: E402
from rewriter.cache import Cache  # noqa: E402
from rewriter.catalog import load  # noqa: E402
from rewriter.rewrite import rewrite  # noqa: E402

SCRIPT = ROOT / "scripts" / "build_patched_vllm.py"


def best(repeat: int, run: Callable[[Path], object]) -> float:
    """Run in a fresh folder each time; return the shortest time in seconds."""
    times = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            run(Path(folder))
            times.append(time.perf_counter() - begin)
    return min(times)


def floor(base: Base, paths: list[str]) -> None:
    """Parse and print whole files with libcst, as a codemod runner would."""
    for path in paths:
        data = (base.root / path).read_bytes()
        assert cst.parse_module(data).bytes == data, path


def whole_build(folder: Path) -> None:
    """Run the script from a cached sdist, in a process of its own."""
    command = [sys.executable, str(SCRIPT), "--out", str(folder / "dist"), "--quiet", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def unpatched_build(folder: Path, sdist: Path) -> None:
    """Build vLLM as its own instructions say for a machine without an accelerator."""
    env = {**os.environ, "VLLM_TARGET_DEVICE": "empty"}
    env["SETUPTOOLS_SCM_PRETEND_VERSION"] = DEFAULT_VERSION
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--skip-dependency-check", "--outdir", str(folder / "out"), "."]
    with tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")
    subprocess.run(
        command,
        check=True,
        cwd=folder / f"vllm-{DEFAULT_VERSION}",
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def peak_memory_mb() -> float:
    """The largest resident size of any child so far, in MB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def show(name: str, value: str) -> None:
    print(f"{name:<44}{value:>14}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    cache, transforms = Cache.default(), load()
    paths = sorted({path for transform in transforms for path in transform.paths})
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as work:
        base = open_base(
            source=None,
            version=DEFAULT_VERSION,
            base_version=None,
            allow_unknown=False,
            cache=cache,
            work=Path(work),
            say=print,
        )
        lines = sum((base.root / path).read_bytes().count(b"\n") for path in paths)
        show("touched files / lines", f"{len(paths)} / {lines}")
        # By turns, so that what else the machine does meets both.
        turns = [
            (best(1, lambda _: floor(base, paths)), best(1, lambda f: rewrite(base, transforms, f)))
            for _ in range(repeat)
        ]
        least, rewriting = map(min, zip(*turns, strict=True))
        show("floor: libcst parse and print", f"{least:.2f} s")
        show("rewrite stage", f"{rewriting:.2f} s")
        show("rewrite / floor (aim: at most 0.50)", f"{rewriting / least:.2f}")
    show("whole build from a cached sdist, two wheels", f"{best(repeat, whole_build):.2f} s")
    show("its peak memory (aim: under 600)", f"{peak_memory_mb():.0f} MB")
    sdist = cache.sdist(KNOWN_SDISTS[DEFAULT_VERSION])
    missing = [m for m in ("torch", "setuptools_scm", "cmake") if not importlib.util.find_spec(m)]
    if missing or sdist is None:
        show("unpatched build, vLLM's own way", "not measured")
        print(f"(it needs {', '.join(missing)} in this environment)")
        return 0
    show("unpatched build, vLLM's own way", f"{best(1, lambda f: unpatched_build(f, sdist)):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
