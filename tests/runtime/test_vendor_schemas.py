"""Every call of an operator of torch_npu's, by its schema.

The file has the schemas of torch_npu 2.9.0 that are used here. The operators of the plugin's
library `_C_ascend` have no published schemas: calls of them await a run on an NPU.
"""

from __future__ import annotations

import ast
from pathlib import Path

import torch

from ascend_runtime.operations import OPERATIONS

RUNTIME = Path(__file__).resolve().parents[2] / "ascend_runtime"
SCHEMAS = {
    schema.name.removeprefix("npu::"): schema
    for schema in map(
        torch._C.parse_schema,
        Path(__file__).with_name("torch_npu_2.9.0_schemas.txt").read_text("utf-8").splitlines(),
    )
}


def calls() -> dict[str, list[ast.Call]]:
    """Calls of names that begin as torch_npu's operators do, but for `_C_ascend`'s."""
    found: dict[str, list[ast.Call]] = {}
    for path in sorted(RUNTIME.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name, owner = node.func.attr, ast.unparse(node.func.value)
                if name.lstrip("_").startswith("npu_") and "_C_ascend" not in owner:
                    found.setdefault(name, []).append(node)
    return found


def test_each_has_a_schema_and_each_schema_a_call() -> None:
    needs = {
        need.removeprefix("torch_npu.")
        for operation in OPERATIONS.values()
        for one in operation.implementations
        for need in one.needs
        if need.startswith("torch_npu.")
    }
    assert set(SCHEMAS) == set(calls()) == needs


def test_arguments_are_those_of_the_schema() -> None:
    for name, found in calls().items():
        takes = SCHEMAS[name].arguments
        positional = [one.name for one in takes if not one.kwarg_only]
        required = {one.name for one in takes if not one.has_default_value()}
        for call in found:
            assert not any(isinstance(one, ast.Starred) for one in call.args)
            given = positional[: len(call.args)] + [str(one.arg) for one in call.keywords]
            assert len(call.args) <= len(positional), f"{name}: too many by position"
            assert len(set(given)) == len(given) and set(given) <= {one.name for one in takes}
            assert required <= set(given)
