"""Run the kernels on a real device: right against their references, and how fast.

usage: python ci/on_npu.py [options] [operation or topic ...]

For each launch of ci/kernel_cases the kernel and the plain torch reference work on the same
tensors; the largest difference is compared with the tolerance of the case. Then both are timed, and
vLLM's own kernel where a patched vLLM is installed and can run it there. To be run on a machine
with an NPU (or, to try the sources, a GPU), in an environment with torch, triton-ascend (or triton)
and, for the last column, the wheel.

Exit status 0 if every kernel agrees with its reference, 1 if one does not, 2 for bad input or if
there is no such device.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from ascend_runtime.operations import OPERATIONS  # noqa: E402
from ci import kernel_cases  # noqa: E402
from ci.kernel_cases import Case, Maker  # noqa: E402
from ci.output import can_be_written  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the kernels on a real device.")
    parser.add_argument("names", nargs="*", metavar="operation", help="default: all")
    parser.add_argument(
        "--device", choices=("npu", "cuda", "cpu"), default="npu", help="npu (default), cuda or cpu"
    )
    parser.add_argument("--repeat", type=int, default=20, help="timed runs (default 20; 0: none)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    options = parser.parse_args(arguments)
    try:
        if options.repeat < 0:
            raise ValueError(f"--repeat {options.repeat}: runs cannot be fewer than none")
        can_be_written(options.json)
        cases = kernel_cases.load(options.names)
        _open(options.device)
    except (ValueError, OSError, RuntimeError, ImportError, AssertionError) as error:
        print(f"on_npu: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    rows = []
    for case in cases:
        rows.append(examine(case, options.device, options.repeat))
        print(line(rows[-1]), flush=True)
    wrong = [row for row in rows if not row["right"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} launches agree with the reference")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 1 if wrong else 0


def _open(device: str) -> None:
    """Load the device's backend; ImportError or RuntimeError if it is not there."""
    if device == "npu":
        importlib.import_module("torch_npu")
    torch.empty(1, device=device)


def examine(case: Case, device: str, repeat: int) -> dict[str, Any]:
    """Run one case; what raises is a row that is not right."""
    ways = {one.kind: one.function for one in OPERATIONS[case.operation].implementations}
    row: dict[str, Any] = {"operation": case.operation, "label": case.label, "right": False}
    try:
        results = []
        for kind in ("kernel", "reference"):
            call = case.make(Maker(device))
            returned = _load(ways[kind])(*call[0], **call[1])
            results.append(case.results(returned, call))
        found = [_difference(a, b) for a, b in zip(*results, strict=True)]
        # max() would lose a NaN that is not the first.
        row["difference"] = float("nan") if any(map(math.isnan, found)) else max(found, default=0.0)
        right = row["difference"] <= case.tolerance
        for kind in ("kernel", "reference"):
            row[kind] = timed(_load(ways[kind]), case, device, repeat)
        row["upstream"], row["no_upstream"] = _upstream(case, device, repeat)
        row["right"] = right
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest finite value; of integers 0 or inf."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.dtype.is_floating_point:
        return 0.0 if one.equal(other) else float("inf")
    one, other = one.double().cpu(), other.double().cpu()
    finite = other.isfinite()
    odd, wanted = one[~finite], other[~finite]
    if not torch.where(odd.isnan(), wanted.isnan(), odd == wanted).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(other[finite].abs().max()), 1e-30)
    return float((one[finite] - other[finite]).abs().max()) / scale


def timed(function: Callable[..., Any], case: Case, device: str, repeat: int) -> float | None:
    """Return the median of some runs in microseconds, compilation apart; None without runs.

    Each run has arguments of its own: some operations count on in them.
    """
    if not repeat:
        return None
    args, kwargs = case.make(Maker(device))
    function(*args, **kwargs)
    runs = []
    for _ in range(repeat):
        args, kwargs = case.make(Maker(device))
        _wait(device)
        begin = time.perf_counter()
        function(*args, **kwargs)
        _wait(device)
        runs.append(time.perf_counter() - begin)
    return sorted(runs)[len(runs) // 2] * 1e6


def _wait(device: str) -> None:
    module = torch.get_device_module(device)
    if hasattr(module, "synchronize"):
        module.synchronize()


def _upstream(case: Case, device: str, repeat: int) -> tuple[float | None, str]:
    """Time vLLM's own kernel; None where it cannot run, and why."""
    if not case.upstream or not repeat:
        return None, ""
    try:
        from ascend_runtime import dispatch

        function = _load(case.upstream)
        if case.grid:
            grid = case.grid(case.make(Maker(device)))
            function = function[grid]
        with dispatch.override("upstream"):
            return timed(function, case, device, repeat), ""
    except Exception as error:  # no vLLM, or what it does not compile to
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    told = f"{'ok   ' if row['right'] else 'WRONG'} {row['operation']:28} {row['label']:52}"
    if "difference" in row:
        told += f" differs {row['difference']:.1e}"
    for kind in ("kernel", "reference", "upstream"):
        if row.get(kind) is not None:
            told += f"  {kind} {row[kind]:.0f} us"
    if row.get("no_upstream"):
        told += f"  no upstream ({row['no_upstream'][:80]})"
    return told + (f"  {row['error']}" if "error" in row else "")


if __name__ == "__main__":
    sys.exit(main())
