"""Compile the kernels for Ascend on a machine without an NPU, and print how far each gets.

usage: python ci/lower_for_ascend.py [options] [operation or topic ...]

Each launch of ci/kernel_cases goes through triton-ascend to its linear algebra dialect ("lowered"),
and from there through the passes of AscendNPU-IR, which plan the unified buffer ("fits", with the
bits it takes; a launch that does not fit fails). The last, closed step of CANN is not there: no
device code is made, and nothing runs. The compilers are installed into a cache folder.

With --upstream the table also has vLLM's own kernels, those that ours replace and those that an NPU
runs as they are; with --edited those that we edit, from the patched tree. A launch of more programs
than Ascend's launcher takes is "refused". --page writes the tables of a page of documentation.

Exit status 0 if every launch of our kernels, and of edited ones, gets to the end, 1 if not, 2 for
bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci import kernel_cases  # noqa: E402
from ci.lowering import page, tools  # noqa: E402
from ci.output import can_be_written  # noqa: E402
from rewriter.errors import RewriterError  # noqa: E402

OURS, VLLMS, EDITED = "ours", "vLLM's", "vLLM's, edited"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compile the kernels for Ascend on a machine without an NPU."
    )
    parser.add_argument("names", nargs="*", metavar="operation", help="default: all")
    parser.add_argument("--upstream", metavar="SITE", help="vLLM's own kernels, from this folder")
    parser.add_argument("--edited", metavar="SITE", help="those that we edit, from a patched tree")
    parser.add_argument("--arch", default="Ascend910B1", help="chip (default Ascend910B1)")
    parser.add_argument("--ir", default="1.0.0", help="version of ascendnpu-ir (default 1.0.0)")
    parser.add_argument(
        "--also-ir", metavar="VERSION", action="append", default=[], help="for the page; repeat"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    parser.add_argument(
        "--page", metavar="FILE", type=Path, help="bring a page's tables up to date"
    )
    options = parser.parse_args(arguments)
    try:
        check(options)
        rows = lower(options)
        show(rows)
        if options.page:
            write_page(options, rows)
    except (ValueError, OSError, RewriterError) as error:
        print(f"lower_for_ascend: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    judged = [row for row in rows if row["whose"] != VLLMS]
    return 0 if judged and all(row["stage"] == "fits" for row in judged) else 1


def check(options: argparse.Namespace) -> None:
    """Refuse bad options before the work begins: ValueError or OSError."""
    can_be_written(options.json)
    if options.also_ir and not options.page:
        raise ValueError("--also-ir is for the page: give --page too")
    if not re.fullmatch(r"Ascend\w*", options.arch):
        raise ValueError(f"--arch {options.arch}: a chip is named as in Ascend910B1")
    if options.page:
        if options.names:
            raise ValueError("--page writes whole tables: name no operations with it")
        can_be_written(options.page)
        if not options.page.is_file():
            raise OSError(f"{options.page} is not there: --page fills the tables of a page")
    for site in (options.upstream, options.edited):
        if site and not (Path(site) / "vllm/triton_utils/__init__.py").is_file():
            raise ValueError(f"{site} has no sources of vLLM in a folder vllm")


def lower(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile all that is asked for; the launches of an operation stand together."""
    trees = [site for site in (options.upstream, options.edited) if site]
    kernel_cases.load(options.names, own=bool(trees))
    folder = tools.install(options.ir)
    rows = run(options.names, folder, options.arch)
    if options.upstream:
        rows += run(options.names, folder, options.arch, options.upstream)
    if options.edited and options.edited != options.upstream:
        rows += run(options.names, folder, options.arch, options.edited, only_edited=True)
    places = {row["operation"]: place for place, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda row: places[row["operation"]])


def run(
    names: list[str],
    folder: Path,
    arch: str,
    site: str | None = None,
    only_edited: bool = False,
) -> list[dict[str, Any]]:
    """Compile in a process of its own, where `triton` is triton-ascend."""
    with tempfile.TemporaryDirectory() as work:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *([site] if site else [])]),
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
        if site:
            command.append("--edited" if only_edited else "--upstream")
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
        if not out.is_file():
            raise RewriterError(f"the compiling process ended with {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))
    patched = site is not None and (Path(site) / "ascend_runtime").is_dir()
    for row in rows:
        edited = row.pop("edited") and patched
        row["whose"] = EDITED if edited else VLLMS if site else OURS
    return rows


def write_page(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the tables into their places on the page, and nothing else."""
    judged = [row for row in rows if row["whose"] == OURS]
    tables = {"our kernels": page.ours(judged)}
    if options.upstream:
        tables["kernels of vLLM"] = page.vllms(rows)
    if options.also_ir:
        versions = {options.ir: judged}
        for version in options.also_ir:
            versions[version] = run(options.names, tools.install(version), options.arch)
        tables["versions"] = page.versions(versions)
    options.page.write_text(page.fill(options.page.read_text("utf-8"), tables), "utf-8")


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    head = ("operation", "launch", "whose", "kernel", "stage", "UB bits", "of")
    cells = [head]
    for row in rows:
        used = "" if row["ub_bits"] is None else f"{row['ub_bits']}"
        of = "" if row["ub_bits"] is None else f"{row['ub_bits'] / tools.UB_BITS:.0%}"
        names = (row["operation"], row["label"], row["whose"], row["kernel"])
        cells.append((*names, row["stage"], used, of))
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    for line in cells:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
    for row in rows:
        if row["why"]:
            print(f"{row['operation']} {row['label']} {row['kernel']}: {row['why']}")
    for whose in dict.fromkeys(row["whose"] for row in rows):
        mine = [row for row in rows if row["whose"] == whose]
        good = sum(row["stage"] == "fits" for row in mine)
        name = "" if whose == OURS else f" of {whose} kernels"
        print(f"{good} of {len(mine)} launches{name} lower for Ascend and fit its unified buffer")


if __name__ == "__main__":
    sys.exit(main())
