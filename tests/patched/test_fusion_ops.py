"""P6: the fusion passes import without `vllm._C`, and find its operators where it is."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import torch
from patched_kit import forks

FOLDER = "vllm/compilation/passes/fusion"
SITES = {
    "matcher_utils": 7,
    "rms_quant_fusion": 13,
    "act_quant_fusion": 2,
    "qk_norm_rope_fusion": 1,
}
MODULES = (
    "act_quant_fusion",
    "allreduce_rms_fusion",
    "attn_quant_fusion",
    "collective_fusion",
    "matcher_utils",
    "qk_norm_rope_fusion",
    "rms_quant_fusion",
    "rope_kvcache_fusion",
    "sequence_parallelism",
)
IMPORT = """
import torch
import vllm.compilation.passes.fusion.{module}

print("imported", hasattr(torch.ops._C, "rms_norm"))
"""
DEFINED = """
import torch

library = torch.library.Library("_C", "DEF")
library.define("rms_norm(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()")
library.define("rms_norm_per_block_quant(Tensor input) -> Tensor")

from vllm.compilation.passes.fusion import matcher_utils, rms_quant_fusion
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym

operator = torch.ops._C.rms_norm.default
print(matcher_utils.RMS_OP is operator, rms_quant_fusion.RMS_OP is operator)
key = rms_quant_fusion.FusedRMSQuantKey(kFp8Dynamic128Sym, True)
print(rms_quant_fusion.FUSED_OPS[key] is torch.ops._C.rms_norm_per_block_quant.default)
print(matcher_utils.SILU_MUL_OP)
"""


@pytest.fixture(scope="module")
def output() -> dict[str, str]:
    return forks({**{name: IMPORT.format(module=name) for name in MODULES}, "defined": DEFINED})


@pytest.mark.parametrize("name", MODULES)
def test_imports_without_the_extension(output: dict[str, str], name: str) -> None:
    assert output[name] == "imported False\n"


def test_operator_that_is_there_is_the_very_object(output: dict[str, str]) -> None:
    assert output["defined"].splitlines() == [
        "True True",
        "True",
        "<missing operator _C::silu_and_mul.default>",
    ]


def test_operators_that_are_missing_say_so() -> None:
    from vllm.compilation.passes.fusion import (
        act_quant_fusion,
        matcher_utils,
        qk_norm_rope_fusion,
        rms_quant_fusion,
    )

    assert not hasattr(torch.ops._C, "rms_norm")
    operators = {
        "rms_norm": [matcher_utils.RMS_OP, rms_quant_fusion.RMS_OP],
        "fused_add_rms_norm": [matcher_utils.RMS_ADD_OP, rms_quant_fusion.RMS_ADD_OP],
        "rotary_embedding": [matcher_utils.ROTARY_OP],
        "silu_and_mul": [matcher_utils.SILU_MUL_OP, act_quant_fusion.SILU_MUL_OP],
        "fused_qk_norm_rope": [qk_norm_rope_fusion.FUSED_QK_ROPE_OP],
    }
    for name, those in operators.items():
        for operator in those:
            with pytest.raises(RuntimeError, match=f"_C::{name}.default is not in this build"):
                operator(torch.ones(1), torch.ones(1), torch.ones(1), 1e-6)
    tables = [matcher_utils.QUANT_OPS, rms_quant_fusion.QUANT_OPS, rms_quant_fusion.FUSED_OPS]
    tables.append(act_quant_fusion.FUSED_OPS)
    assert [len(table) for table in tables] == [3, 3, 8, 1]
    for table in tables:
        for operator in table.values():
            assert repr(operator).startswith("<missing operator _C::")
            assert operator.default is operator


def sites(tree: ast.AST) -> tuple[list[ast.Call], list[str]]:
    """Return the lookups that are optional now, and those as upstream writes them."""
    optional, plain = [], []
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Attribute) else ""
        if isinstance(node, ast.Call) and text.startswith("ascend_runtime.optional_ops.overload("):
            optional.append(node)
        elif isinstance(node, ast.Attribute) and text.startswith("torch.ops._C."):
            plain.append(text)
    return optional, [text for text in plain if text.count(".") == 4]


def test_seven_and_sixteen_lookups_are_rewritten(installed) -> None:
    counts, names = {}, set()
    for path in sorted(Path(installed.site, FOLDER).glob("*.py")):
        optional, _ = sites(ast.parse(path.read_text()))
        if optional:
            counts[path.stem] = len(optional)
        names |= {call.args[1].value for call in optional}
        assert {call.args[0].value for call in optional} <= {"_C"}
    assert counts == SITES
    assert sum(counts.values()) == 7 + 16
    assert len(names) == 13


def test_lookups_that_vllm_guards_are_as_they_were(installed, base) -> None:
    guarded = 0
    for name in SITES:
        path = f"{FOLDER}/{name}.py"
        tree = ast.parse(Path(installed.site, path).read_text())
        optional, after = sites(tree)
        _, before = sites(ast.parse(Path(base.root, path).read_text()))
        rewritten = [f"torch.ops._C.{call.args[1].value}.default" for call in optional]
        assert Counter(before) == Counter(after) + Counter(rewritten)
        guarded += len(after)
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                assert sites(statement)[1] == []
    assert guarded
