"""No code of all platforms names CUDA as the device, but where hard_coded_cuda.toml says why."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from patched_kit import HERE

CUDA = re.compile(r"cuda(:\d*)?\Z")
LISTS = tomllib.loads((HERE / "hard_coded_cuda.toml").read_text("utf-8"))
#: What the transforms made neutral: as many files as have no entry, and these with one.
IN_PART = {
    "distributed/parallel_state.py",
    "model_executor/model_loader/weight_utils.py",
}


def names_cuda(node: ast.AST) -> bool:
    """Whether a node by itself is a device, a call or a function of CUDA."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(CUDA.match(text))
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.startswith("cuda:")
        case ast.Call(func=ast.Attribute(attr="cuda")):
            return True
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="cuda")):
            return True
        case ast.ImportFrom(module=str(module), level=0):
            return f"{module}.".startswith("torch.cuda.")
        case ast.Import(names=names):
            return any(f"{alias.name}.".startswith("torch.cuda.") for alias in names)
    return False


def scopes(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[str]:
    """The scope of each place that names CUDA; annotations and docstrings are no such places."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST):
                continue
            # A docstring, or a part of an f-string, which counts as a whole.
            if isinstance(tree, ast.Expr | ast.JoinedStr) and isinstance(node, ast.Constant):
                continue
            if names_cuda(node):
                yield ".".join(scope)
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from scopes(node, (*scope, node.name) if named else scope)


def places(root: Path) -> set[tuple[str, str]]:
    """File below vllm/ and scope of all places of a tree."""
    found = set()
    for path in (root / "vllm").rglob("*.py"):
        text = path.read_text("utf-8")
        if "cuda" in text:
            file = path.relative_to(root / "vllm").as_posix()
            found |= {(file, scope) for scope in scopes(ast.parse(text))}
    return found


@pytest.fixture(scope="module")
def patched(installed) -> set[tuple[str, str]]:
    return places(installed.site)


@pytest.fixture(scope="module")
def keys() -> list[str]:
    return [key for entries in LISTS.values() for key in entries]


def test_only_listed_places_name_cuda(patched, keys) -> None:
    new = {(f, s) for f, s in patched if f not in keys and f"{f}:{s}" not in keys}
    assert not new, "ask current_platform or a tensor, or say in hard_coded_cuda.toml why not"


def test_each_entry_still_has_a_place(patched, keys) -> None:
    there = {file for file, _ in patched} | {f"{file}:{scope}" for file, scope in patched}
    assert not set(keys) - there, "these are neutral or gone: remove their entries"


def test_each_entry_is_in_one_list_and_has_a_reason(keys) -> None:
    assert set(LISTS) == {"must_not_touch", "unsure", "left"}
    assert len(keys) == len(set(keys))
    assert all(len(reason) > 3 for entries in LISTS.values() for reason in entries.values())


def test_transforms_made_the_others_neutral(base, patched, keys) -> None:
    files = {file for file, _ in places(base.root)}
    whole = files - {key.partition(":")[0] for key in keys}
    assert (len(files), len(whole)) == (84, 22)
    assert not whole & {file for file, _ in patched}
    assert {key.partition(":")[0] for key in keys if ":" in key} == IN_PART


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('x = "cuda"', [""]),
        ('def f(device="cuda:0"): ...', ["f"]),
        ('def f(*, device="cuda"): ...', ["f"]),
        ('def f():\n    return f"cuda:{rank}"', ["f"]),
        ("class A:\n    async def f(self):\n        x.y[0].cuda()", ["A.f"]),
        ("with torch.cuda.stream(s): ...", [""]),
        ("x: torch.cuda.Stream = torch.cuda.Stream()", [""]),
        ("from torch.cuda import Stream", [""]),
        ("import torch.cuda.nvtx as nvtx", [""]),
        ("import torch, torch.cudart; from .torch.cuda import x", []),
        ('@autocast(device_type="cuda")\ndef f(): ...', ["f"]),
        ('def f() -> torch.cuda.Stream:\n    """cuda"""\n    "cuda"', []),
        ('def f(x: torch.cuda.Stream, y: "cuda"): ...  # "cuda"', []),
        ('x = "cuda graphs"; y = f"{x}cuda:"; x.is_cuda; x.cuda; torch.version.cuda', []),
        ('x = cudagraph; y = "cuda:a"; torch.cuda', []),
    ],
)
def test_what_the_scan_finds(code: str, found: list[str]) -> None:
    assert list(scopes(ast.parse(code))) == found
