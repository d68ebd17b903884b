"""The two programs that prove kernels: compiled for Ascend, and run on a device."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ascend_runtime.kernels import norm
from ci import kernel_cases, lower_for_ascend, on_npu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("TRITON_ASCEND_ARCH", "Ascend910B1")
    return importlib.import_module("ci.lowering.worker")


def test_each_kernel_has_a_case():
    from ascend_runtime.operations import OPERATIONS

    wanted = {
        one.name
        for one in OPERATIONS.values()
        if any(way.kind == "kernel" for way in one.implementations)
    }
    assert {case.operation for case in kernel_cases.load()} == wanted


def test_each_implementation_is_there():
    from ascend_runtime.operations import OPERATIONS

    for operation in OPERATIONS.values():
        for way in operation.implementations:
            for target in (way.function, way.fits):
                if target:
                    module, _, name = target.partition(":")
                    assert callable(getattr(importlib.import_module(module), name)), target


@pytest.mark.parametrize("program", ["lower_for_ascend.py", "on_npu.py"])
def test_unknown_kernel_is_one_line(program):
    command = [sys.executable, ROOT / "ci" / program, "norm", "norm.fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no kernel is named norm.fast; there are " in done.stderr


def test_device_that_is_not_there_is_one_line(capsys):
    assert on_npu.main(["--device", "npu", "norm.l2norm_fwd"]) == 2
    assert on_npu.main(["--device", "cuda", "norm.l2norm_fwd"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 2


def test_run_on_a_device_tells_right_from_wrong(capsys, monkeypatch, tmp_path):
    table = tmp_path / "table.json"
    arguments = ["--device", "cpu", "--repeat", "1", "--json", str(table), "norm.l2norm_fwd"]
    small = [case for case in kernel_cases.load(["norm.l2norm_fwd"]) if "4096" not in case.label]
    monkeypatch.setattr(kernel_cases, "load", lambda names: small)
    assert on_npu.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("ok    norm.l2norm_fwd") == len(small) == 2
    assert out.count(" kernel ") == out.count(" reference ") == 2
    assert table.read_text().count('"right": true') == 2

    monkeypatch.setattr(norm, "l2norm_fwd", lambda x: torch.nn.functional.normalize(x, dim=-1) * 2)
    assert on_npu.main(arguments) == 1
    assert capsys.readouterr().out.count("WRONG norm.l2norm_fwd") == 2
    monkeypatch.setattr(norm, "l2norm_fwd", lambda x: 1 / 0)
    assert on_npu.main(arguments) == 1
    assert capsys.readouterr().out.count("ZeroDivisionError") == 2


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1, 2], [1, 2], 0.0),
        ([1, 2], [1, 3], float("inf")),
        ([1.0, float("inf")], [1.0, float("inf")], 0.0),
        ([1.0, float("-inf")], [1.0, float("inf")], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
        ([0.0], [0.0], 0.0),
    ],
)
def test_differences(one, other, difference):
    assert on_npu._difference(torch.tensor(one), torch.tensor(other)) == difference


def test_bits_of_the_unified_buffer(worker):
    code = """
    %c0_i64 = arith.constant 0 : i64
    %c4096_i64 = arith.constant 4096 : i64
    %0 = hivm.hir.pointer_cast(%c4096_i64) : memref<2x512xf32, #hivm.address_space<ub>>
    %1 = hivm.hir.pointer_cast(%c0_i64) : memref<1024xi16, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%c4096_i64) : memref<9999999xf32, #hivm.address_space<cbuf>>
    """
    assert worker.buffer_bits(code) == 8 * 4096 + 32 * 1024
    assert worker.buffer_bits("") == 0


def test_what_a_compiler_refused(worker):
    over = (
        "[ConvertLinalgRToBinary] encounters error:\nloc: error: ub overflow, requires 2 bits\n"
        "loc: error: ub overflow, requires 2 bits\nand more"
    )
    row = worker.failure("kernel", over)
    assert (row["stage"], row["why"]) == ("lowered", "error: ub overflow, requires 2 bits")
    row = worker.failure("kernel", "at 3:4:\nsomething is odd")
    assert (row["stage"], row["why"]) == ("failed", "something is odd")


def test_table_of_lowered_kernels(capsys):
    row = {"operation": "a.b", "label": "3x4", "kernel": "_k", "stage": "fits", "why": ""}
    failed = {**row, "stage": "lowered", "ub_bits": None, "why": "error: ub overflow"}
    lower_for_ascend.show([{**row, "ub_bits": 786432}, failed])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["a.b", "3x4", "_k", "fits", "786432", "50%"]
    assert lines[3] == "a.b 3x4 _k: error: ub overflow"
    assert lines[4] == "1 of 2 launches lower for Ascend and fit its unified buffer"
