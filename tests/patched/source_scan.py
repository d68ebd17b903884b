"""Calls in the sources of vLLM, found without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Use:
    """A dotted name that is used: its file below vllm/, the function around it, and the name."""

    file: str
    scope: str
    name: str


def uses(root: Path, words: tuple[str, ...]) -> list[Use]:
    """Every use of a dotted name below a folder that holds vllm/, in files with one of `words`.

    Names are resolved through the imports of the module: `dist.all_reduce` of a module that says
    `import torch.distributed as dist` is `torch.distributed.all_reduce`.
    """
    found = []
    for path in sorted((root / "vllm").rglob("*.py")):
        text = path.read_text("utf-8")
        if any(word in text for word in words):
            file = path.relative_to(root / "vllm").as_posix()
            found += [Use(file, *use) for use in _uses(ast.parse(text))]
    return found


def functions(root: Path, words: tuple[str, ...]) -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Each function below a folder, in files with one of `words`: its file, its scope and itself.

    Those within another function are a part of that one.
    """

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join((*scope, child.name)), child
            else:
                named = isinstance(child, ast.ClassDef)
                yield from visit(child, (*scope, child.name) if named else scope)

    for path in sorted(root.rglob("*.py")):
        text = path.read_text("utf-8")
        if any(word in text for word in words):
            for scope, function in visit(ast.parse(text), ()):
                yield path.relative_to(root).as_posix(), scope, function


def _uses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, (*scope, child.name))
                continue
            dotted = _dotted(child)
            if dotted:
                first, _, rest = dotted.partition(".")
                full = names.get(first, first)
                yield ".".join(scope), f"{full}.{rest}" if rest else full
            yield from visit(child, scope)

    yield from visit(tree, ())


def _dotted(node: ast.AST) -> str:
    """The text of `a.b.c` or `a`; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
