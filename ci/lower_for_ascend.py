"""Compile the kernels for Ascend on a machine without an NPU, and print how far each gets.

usage: python ci/lower_for_ascend.py [options] [operation or topic ...]

Each launch of ci/kernel_cases goes through triton-ascend to its linear algebra dialect ("lowered"),
and from there through the passes of AscendNPU-IR, which plan the unified buffer ("fits", with the
bits it takes; a launch that does not fit fails). The last, closed step of CANN is not there: no
device code is made, and nothing runs. The compilers are installed into a cache folder.

Exit status 0 if every launch gets to the end, 1 if not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci import kernel_cases  # noqa: E402
from ci.lowering import tools  # noqa: E402

STAGES = ("lowered", "fits")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compile the kernels for Ascend on a machine without an NPU."
    )
    parser.add_argument("names", nargs="*", metavar="operation", help="default: all")
    parser.add_argument("--upstream", metavar="SITE", help="vLLM's own kernels, from this folder")
    parser.add_argument("--arch", default="Ascend910B1", help="chip (default Ascend910B1)")
    parser.add_argument("--ir", default="1.0.0", help="version of ascendnpu-ir (default 1.0.0)")
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON too")
    options = parser.parse_args(arguments)
    try:
        kernel_cases.load(options.names)
        folder = tools.install(options.ir)
    except (ValueError, OSError) as error:
        print(f"lower_for_ascend: {error}", file=sys.stderr)
        return 2
    rows = run(options.names, folder, options.arch, options.upstream)
    show(rows)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0 if rows and all(row["stage"] == "fits" for row in rows) else 1


def run(
    names: list[str], folder: Path, arch: str, upstream: str | None = None
) -> list[dict[str, Any]]:
    """Compile in a process of its own, where `triton` is triton-ascend."""
    with tempfile.TemporaryDirectory() as work:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(folder), str(ROOT), *([upstream] if upstream else [])]
            ),
            "PATH": os.pathsep.join(
                [str(tools.SHIM), str(folder / "ascendnpuir/bin"), os.environ["PATH"]]
            ),
            "TRITON_ASCEND_ARCH": arch,
            "TRITON_CACHE_DIR": str(Path(work) / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "ASCEND_RUNTIME_CORES": "24,48",
        }
        environment.pop("TRITON_INTERPRET", None)
        out = Path(work) / "rows.json"
        command = [sys.executable, "-m", "ci.lowering.worker", str(out), *names]
        if upstream:
            command.insert(4, "--upstream")
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
        if not out.is_file():
            raise RuntimeError(f"the compiling process ended with {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))
        return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    head = ("operation", "launch", "kernel", "stage", "UB bits", "of")
    cells = [head]
    for row in rows:
        used = "" if row["ub_bits"] is None else f"{row['ub_bits']}"
        of = "" if row["ub_bits"] is None else f"{row['ub_bits'] / tools.UB_BITS:.0%}"
        cells.append((row["operation"], row["label"], row["kernel"], row["stage"], used, of))
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    for line in cells:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
    for row in rows:
        if row["why"]:
            print(f"{row['operation']} {row['label']} {row['kernel']}: {row['why']}")
    good = sum(row["stage"] == "fits" for row in rows)
    print(f"{good} of {len(rows)} launches lower for Ascend and fit its unified buffer")


if __name__ == "__main__":
    sys.exit(main())
