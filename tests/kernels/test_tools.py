"""The two programs that prove kernels: compiled for Ascend, and run on a device."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ascend_runtime.kernels import norm
from ci import kernel_cases, lower_for_ascend, on_npu
from ci.lowering import page

ROOT = Path(__file__).parents[2]
#: Where vLLM has the kernels of its two model runners.
RUNNERS = ("vllm/v1/worker", "vllm/v1/sample", "vllm/v1/spec_decode")
ROW = {"operation": "a.b", "label": "3x4", "kernel": "_k", "stage": "fits", "why": ""}
ROW |= {"whose": "ours", "ub_bits": 786432}
BROKEN = {**ROW, "stage": "lowered", "ub_bits": None, "why": "error: ub overflow"}


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("TRITON_ASCEND_ARCH", "Ascend910B1")
    return importlib.import_module("ci.lowering.worker")


TOOLS = ("on_npu", "lower_for_ascend")


def test_each_kernel_has_a_case():
    from ascend_runtime.operations import OPERATIONS

    wanted = {
        one.name
        for one in OPERATIONS.values()
        if any(way.kind == "kernel" for way in one.implementations)
    }
    assert {case.operation for case in kernel_cases.load()} == wanted


def test_each_kernel_of_the_model_runners_has_a_case(vllm_site):
    targets = [case.upstream for case in kernel_cases.load(own=True) if case.upstream]
    reached = set()
    for target in targets:
        module, _, name = target.partition(":")
        text = (vllm_site / module.replace(".", "/")).with_suffix(".py").read_text()
        (found,) = (one for one in ast.parse(text).body if getattr(one, "name", "") == name)
        reached |= {name, *re.findall(r"\w+", ast.get_source_segment(text, found))}
    kernels = {
        match
        for folder in RUNNERS
        for path in (vllm_site / folder).rglob("*.py")
        for match in re.findall(r"^@triton\.jit[^\n]*\ndef (\w+)", path.read_text(), re.M)
    }
    assert len(kernels) > 30 and "batch_memcpy_kernel" in kernels
    assert not kernels - reached


def test_cases_of_vllm_are_asked_for():
    ours, all_ = kernel_cases.load(), kernel_cases.load(own=True)
    assert not any(case.only_vllm or case.edited for case in ours)
    assert all(case.upstream for case in all_ if case.only_vllm)
    assert [case.operation for case in all_ if case.edited] == ["v1.batch_memcpy"] * 2
    assert {case.operation for case in kernel_cases.load(["v1"], own=True)} >= {"v1.batch_memcpy"}
    with pytest.raises(ValueError, match="no kernel is named v1"):
        kernel_cases.load(["v1"])
    one = kernel_cases.load(["v1.batch_memcpy"], own=True)[0].make(kernel_cases.Maker("cpu"))
    assert [(len(x), x.dtype) for x in one[0]] == [
        (18432, torch.int64),
        (18432, torch.int64),
        (18432, torch.int32),
    ]


def test_each_implementation_is_there():
    from ascend_runtime.operations import OPERATIONS

    for operation in OPERATIONS.values():
        for way in operation.implementations:
            for target in (way.function, way.fits):
                if target:
                    module, _, name = target.partition(":")
                    assert callable(getattr(importlib.import_module(module), name)), target


@pytest.mark.parametrize("name", ["gdn.gating", "sampling.post_update"])
def test_a_nan_anywhere_is_wrong(capsys, monkeypatch, name):
    """Also where it is not in the first result, and where only the timing fails."""
    assert on_npu.main(["--device", "cpu", "--repeat", "0", name]) == 0
    honest = on_npu._difference
    seen = []

    def last_is_nan(one, other):
        seen.append(one)
        return honest(one, other) if len(seen) % 2 else float("nan")

    monkeypatch.setattr(on_npu, "_difference", last_is_nan)
    assert on_npu.main(["--device", "cpu", "--repeat", "0", name]) == 1
    assert "differs nan" in capsys.readouterr().out
    monkeypatch.setattr(on_npu, "_difference", honest)

    def failing(*args):
        raise RuntimeError("no clock")

    monkeypatch.setattr(on_npu, "timed", failing)
    assert on_npu.main(["--device", "cpu", name]) == 1
    assert "no clock" in capsys.readouterr().out


def test_timed_runs_have_arguments_of_their_own():
    """`post_update` counts on in its tensors."""
    cases = kernel_cases.load(["sampling.post_update"])
    lengths = []
    on_npu.timed(lambda *args: lengths.append(int(args[-1].sum())), cases[0], "cpu", 3)
    assert len(lengths) == 4 and len(set(lengths)) == 1


def test_bad_options_are_one_line(capsys, tmp_path):
    missing = str(tmp_path / "none" / "x.json")
    name = "gdn.olmo_gating"
    assert on_npu.main(["--device", "cpu", "--repeat", "-3", name]) == 2
    assert on_npu.main(["--device", "cpu", "--json", missing, name]) == 2
    assert lower_for_ascend.main(["--json", missing, name]) == 2
    assert lower_for_ascend.main(["--ir", "9.9.9", name]) == 2
    assert lower_for_ascend.main(["--also-ir", "1.1.0"]) == 2
    assert lower_for_ascend.main(["--page", str(tmp_path / "page.md")]) == 2
    (tmp_path / "page.md").touch()
    assert lower_for_ascend.main(["--page", str(tmp_path / "page.md"), name]) == 2
    assert lower_for_ascend.main(["--arch", "Foo", name]) == 2
    (tmp_path / "site/vllm").mkdir(parents=True)
    assert lower_for_ascend.main(["--upstream", str(tmp_path / "site"), name]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9 and all(line.split(":")[0] in TOOLS for line in lines)


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
        ([float("nan"), 1.0], [0.0, 1.0], float("nan")),
        ([0.0, 1.0], [float("nan"), 1.0], float("inf")),
        ([torch.finfo(torch.float32).max], [float("inf")], float("inf")),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], 0.0),
        ([1.0], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
        ([0.0], [0.0], 0.0),
    ],
)
def test_differences(one, other, difference):
    found = on_npu._difference(torch.tensor(one), torch.tensor(other))
    assert found == difference or (math.isnan(found) and math.isnan(difference))


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
    row = worker.failure("kernel", "error: Failed to run BiShengHIR pipeline\nerror: too big")
    assert row["why"] == "error: too big"
    row = worker.failure("kernel", "a.h:2: f(): Assertion `i < n()' failed.\nStack dump:\n[END]")
    assert row["why"] == "the compiler aborts: Assertion `i < n()' failed"
    deep = (
        r"""CompilationError('def f():\n', <ast>, 'ValueError("not [\\\'int32\\\'] but f(u)")')"""
    )
    assert worker.failure("kernel", deep)["why"] == "ValueError: not [int32] but f(u)"


def test_launch_that_is_too_large(worker):
    assert worker.success("kernel", "", 65535)["stage"] == "fits"
    row = worker.success("kernel", "", 65536)
    assert row["stage"] == "refused"
    assert row["why"] == "65536 programs, of which a launch can have 65535"


def test_table_of_lowered_kernels(capsys):
    lower_for_ascend.show([ROW, BROKEN, {**ROW, "whose": "vLLM's"}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["a.b", "3x4", "ours", "_k", "fits", "786432", "50%"]
    assert lines[4] == "a.b 3x4 _k: error: ub overflow"
    assert lines[5] == "1 of 2 launches lower for Ascend and fit its unified buffer"
    assert lines[6].startswith("1 of 1 launches of vLLM's kernels lower ")


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Sites of a pristine and a patched tree, and what became of launches, to be set."""
    for name in ("pristine/vllm", "patched/vllm", "patched/ascend_runtime"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pristine", "patched"):
        (tmp_path / name / "vllm/triton_utils").mkdir()
        (tmp_path / name / "vllm/triton_utils/__init__.py").touch()
    fates = {"ours": "fits", "pristine": "failed", "patched": "fits"}
    raw = {key: value for key, value in ROW.items() if key != "whose"}

    def process(command, **options):
        site = options["env"]["PYTHONPATH"].rpartition("/")[2]
        stage = fates[site if site in fates else "ours"]
        rows = [{**raw, "stage": stage, "edited": True}]
        if "--edited" not in command:
            rows.append({**raw, "operation": "c.d", "edited": False})
        out = command[command.index("ci.lowering.worker") + 1]
        Path(out).write_text(json.dumps(rows))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(lower_for_ascend.tools, "install", lambda version: tmp_path / version)
    monkeypatch.setattr(lower_for_ascend.subprocess, "run", process)
    return tmp_path, fates


@pytest.mark.parametrize(
    ("changed", "status"),
    [({}, 0), ({"pristine": "fits"}, 0), ({"patched": "lowered"}, 1), ({"ours": "refused"}, 1)],
)
def test_kernels_of_ours_and_edited_ones_decide(compiled, capsys, changed, status):
    folder, fates = compiled
    fates |= changed
    table = folder / "table.json"
    sites = ["--upstream", f"{folder}/pristine", "--edited", f"{folder}/patched"]
    assert lower_for_ascend.main([*sites, "--json", str(table)]) == status
    rows = [(row["operation"], row["whose"]) for row in json.loads(table.read_text())]
    assert rows == [
        ("a.b", "ours"),
        ("a.b", "vLLM's"),
        ("a.b", "vLLM's, edited"),
        ("c.d", "ours"),
        ("c.d", "vLLM's"),
    ]


def test_tree_that_is_not_there_is_one_line(compiled, capsys):
    assert lower_for_ascend.main(["--upstream", f"{compiled[0]}/none"]) == 2
    told = capsys.readouterr()
    assert (
        told.out == ""
        and told.err
        == f"lower_for_ascend: {compiled[0]}/none has no sources of vLLM in a folder vllm\n"
    )
    done = subprocess.CompletedProcess([], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower_for_ascend.subprocess, "run", lambda *_, **__: done)
        assert lower_for_ascend.main([]) == 2
    told = capsys.readouterr().err
    assert told == "lower_for_ascend: the compiling process ended with 1\n"


def test_operation_without_a_kernel_is_told(capsys):
    for tool in (on_npu, lower_for_ascend):
        options = ["--device", "cpu"] if tool is on_npu else []
        assert tool.main([*options, "rejection.expand"]) == 2
        assert "rejection.expand (it has none of ours); there" in capsys.readouterr().err


def test_why_vllms_kernel_is_not_timed(capsys, monkeypatch):
    (case, _) = kernel_cases.load(["rejection.greedy"])
    case = dataclasses.replace(case, upstream="no_such_module:kernel")
    monkeypatch.setattr(kernel_cases, "load", lambda names: [case])
    assert on_npu.main(["--device", "cpu", "--repeat", "1", "rejection.greedy"]) == 0
    assert "no upstream (ModuleNotFoundError: No module named 'no_such" in capsys.readouterr().out


def test_page_gets_its_tables_and_keeps_the_rest(compiled, capsys):
    folder, _ = compiled
    text = "# Page\n"
    for name in ("our kernels", "kernels of vLLM", "versions"):
        text += f"\nAbout.\n\n<!-- {name} -->\nold\n<!-- end of {name} -->\n"
    written = folder / "page.md"
    written.write_text(text)
    options = ["--upstream", f"{folder}/pristine", "--also-ir", "1.1.0", "--page", str(written)]
    assert lower_for_ascend.main(options) == 0
    page_ = written.read_text()
    assert page_.count("About.") == 3 and "old" not in page_
    assert "| `a.b` | 1 | 1 | 786,432 | 50% |\n" in page_
    assert "| 1.1.0 | 2 of 2 | 0 |  | 0 |  |\n" in page_
    again = page_
    assert lower_for_ascend.main(options) == 0 and written.read_text() == again
    written.write_text("# Page\n")
    assert lower_for_ascend.main(options) == 2
    assert "the page has no place for a table: <!-- our kernels -->" in capsys.readouterr().err


def test_lines_of_the_page():
    edited = {**ROW, "operation": "v1.batch_memcpy", "whose": "vLLM's, edited"}
    known = {**BROKEN, "operation": "sampling.apply_top_k_top_p", "whose": "vLLM's"}
    over = "error: ub overflow, requires 2000000 bits while | error: more"
    rows = [
        ROW,
        {**BROKEN, "operation": "v1.batch_memcpy", "whose": "vLLM's"},
        edited,
        {**known, "why": over},
        {**ROW, "operation": "norm.l2norm_fwd", "whose": "vLLM's"},
        {**BROKEN, "operation": "norm.l2norm_fwd", "whose": "vLLM's", "why": "a | b"},
        {**ROW, "operation": "v1.other", "whose": "vLLM's"},
        {**ROW, "operation": "rejection.expand", "whose": "vLLM's"},
    ]
    assert page.vllms(rows).splitlines()[2:] == [
        "| `v1.batch_memcpy` | `_k` | 0 of 1 | ub overflow | edited |",
        "| `v1.batch_memcpy` | `_k`, edited | 1 of 1 |  | as edited |",
        "| `sampling.apply_top_k_top_p` | `_k` | 0 of 1 | up to 2,000,000 bits are needed | "
        "an operator of Huawei's, or plain torch |",
        "| `norm.l2norm_fwd` | `_k` | 1 of 2 | a | our kernel |",
        "| `v1.other` | `_k` | 1 of 1 |  | as it is |",
        "| `rejection.expand` | `_k` | 1 of 1 |  | plain torch |",
    ]
    small, large = {**ROW, "label": "5"}, {**ROW, "label": "9", "ub_bits": 1000000}
    newer = [{**ROW, "ub_bits": 800000}, {**small, "ub_bits": 900000}, BROKEN]
    newer.append({**large, "ub_bits": 5})
    assert page.versions({"1.0": [ROW, small, large], "1.1": newer}).splitlines()[2:] == [
        "| 1.0 | 3 of 3 | 0 |  | 0 |  |",
        "| 1.1 | 3 of 4 | 1 | 786,432 to 900,000: `_k`, 5 | 1 | 1,000,000 to 5: `_k`, 9 |",
    ]


def test_page_has_each_kernel():
    text = (ROOT / "docs/kernels_on_ascend.md").read_text("utf-8")
    for name, own in (("our kernels", False), ("kernels of vLLM", True)):
        table = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        told = set(re.findall(r"^\| `([\w.]+)`", table, re.M))
        cases = [case for case in kernel_cases.load(own=own) if not own or case.upstream]
        assert told == {case.operation for case in cases}, "see the end of the page"
