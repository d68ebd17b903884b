"""The process in which `triton` is triton-ascend: compile the launches, write what became of each.

usage: python -m ci.lowering.worker ROWS.json [--upstream | --edited] [operation or topic ...]
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from ascend_runtime.kernels.launch import MOST_PROGRAMS
from ascend_runtime.operations import OPERATIONS
from ci.kernel_cases import Case, Maker, load

ARCH = os.environ["TRITON_ASCEND_ARCH"]
_TO_BINARY = "ConvertLinalgRToBinary"
#: What the passes of AscendNPU-IR add to each error.
_OF_ANY = "Failed to run BiShengHIR pipeline"


class _Utils:
    """What the backend asks of a chip."""

    def get_arch(self) -> str:
        return ARCH

    def get_aicore_num(self) -> int:
        return 24

    def get_aivector_core_num(self) -> int:
        return 48

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        return {"max_shared_mem": 1, "num_aicore": 24, "num_vectorcore": 48}


class _Driver:
    """A device that only has a name."""

    utils = _Utils()
    launcher_cls = None

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("npu", ARCH, 0)

    def get_benchmarker(self) -> Callable[..., list[int]]:
        return lambda function, **options: [0, 0, 0]


def install(rows: list[dict[str, Any]]) -> None:
    """Let each launch compile its kernel instead, and note what became of it."""
    driver.set_active(_Driver())
    backends["ascend"].compiler.add_stages.__globals__["NPUUtils"] = _Utils
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        try:
            compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            rows.append(failure(self.fn.__name__, str(error)))
        else:
            names = dict(zip(self.arg_names, args, strict=False))
            extents = grid({**names, **kwargs}) if callable(grid) else grid
            code = compiled.asm["npubin"].decode("utf-8")
            rows.append(success(self.fn.__name__, code, math.prod(extents)))

    JITFunction.run = compile_only
    Autotuner.run = _first_configuration


def _first_configuration(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    options = self.configs[0].all_kwargs()
    for name in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
        options.pop(name, None)
    return self.fn.run(*args, **kwargs, **options)


def success(kernel: str, code: str, programs: int) -> dict[str, Any]:
    """Describe a launch of `programs` that came to the end; `code` is its HIVM code."""
    row = {"kernel": kernel, "stage": "fits", "ub_bits": buffer_bits(code), "why": ""}
    if programs > MOST_PROGRAMS:
        why = f"{programs} programs, of which a launch can have {MOST_PROGRAMS}"
        row |= {"stage": "refused", "why": why}
    return row


def failure(kernel: str, message: str) -> dict[str, Any]:
    """Describe a launch that a compiler refused."""
    stage = "lowered" if _TO_BINARY in message else "failed"
    told = list(dict.fromkeys(re.findall(r"error: [^\n]*|Error: [^\n]*|LLVM ERROR[^\n]*", message)))
    why = " | ".join([one for one in told if _OF_ANY not in one] or told) or _abort(message)
    return {"kernel": kernel, "stage": stage, "ub_bits": None, "why": why[:400]}


def _abort(message: str) -> str:
    """Find what a compiler broke on that names no error: an assertion, or a nested exception."""
    failed = re.search(r"Assertion `[^'\n]*' failed", message)
    if failed:
        return f"the compiler aborts: {failed[0]}"
    plain = re.sub(r"[\\\"']", "", message)
    names = list(re.finditer(r"(\w+Error)\(", plain))
    if names:
        text = plain[names[-1].end() :].partition("\n")[0]
        while text.count(")") > text.count("("):
            text = text[: text.rindex(")")]
        return f"{names[-1][1]}: {text}"
    return message.strip().splitlines()[-1]


def buffer_bits(code: str) -> int:
    """Return how much of the unified buffer a kernel's plan takes: the end of its last piece."""
    constants = {
        name: int(value)
        for name, value in re.findall(r"(%\S+) = arith\.constant (\d+) : i64", code)
    }
    end = 0
    pieces = r"pointer_cast\(([^)]*)\)[^:\n]*: memref<([^,>]*), #hivm\.address_space<ub>>"
    for places, shape in re.findall(pieces, code):
        *extents, element = shape.split("x")
        size = int(re.sub(r"\D", "", element))
        for extent in extents:
            size *= int(extent)
        offsets = [constants[place.strip()] for place in places.split(",") if "%" in place]
        end = max([end, *(offset * 8 + size for offset in offsets[:1] or [0])])
    return end


def call(case: Case, upstream: bool) -> None:
    """Make the launches of a case."""
    given = Maker("cpu")
    args, kwargs = case.make(given)
    if not upstream:
        kernel = next(
            one for one in OPERATIONS[case.operation].implementations if one.kind == "kernel"
        )
        _load(kernel.function)(*args, **kwargs)
        return
    assert case.upstream
    function = _load(case.upstream)
    if case.grid:
        function = function[case.grid((args, kwargs))]
    function(*args, **kwargs)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def main(out: str, *arguments: str) -> None:
    names = [one for one in arguments if not one.startswith("--")]
    edited = "--edited" in arguments
    upstream = edited or "--upstream" in arguments
    table: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    install(rows)
    if upstream:
        os.environ["ASCEND_RUNTIME_IMPL"] = "upstream"
        os.environ["ASCEND_RUNTIME_DEVICE"] = "npu"  # for sizes that edited code asks for
        # vLLM's functions ask the platform for a device, and enter its context.
        importlib.import_module("vllm.platforms").current_platform.device_type = "cpu"
        torch.accelerator.device_index = nullcontext
    for case in load(names, own=True):
        there = case.upstream if upstream else not case.only_vllm
        if not there or (edited and not case.edited):
            continue
        rows.clear()
        try:
            call(case, upstream)
        except Exception as error:  # a case that breaks on the host is a row of the table
            rows.append(failure("", f"{type(error).__name__}: {error}"))
        seen = []
        for row in rows or [failure("", "nothing was launched")]:
            if row not in seen:
                seen.append(dict(row))
        about = {"operation": case.operation, "label": case.label, "edited": case.edited}
        table += [{**about, **row} for row in seen]
    Path(out).write_text(json.dumps(table), "utf-8")


if __name__ == "__main__":
    assert hasattr(triton, "jit")
    main(*sys.argv[1:])
