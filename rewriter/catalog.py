"""Finds transforms by walking packages and folders; there is no central list."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import rewriter.transforms
from rewriter.errors import RewriterError
from rewriter.transform import Transform, TransformError


def _bind(name: str, module: ModuleType, path: Path) -> Transform:
    transform = getattr(module, "TRANSFORM", None)
    if not isinstance(transform, Transform):
        raise RewriterError(f"{path.name} defines no TRANSFORM; see CONTRIBUTING.md")
    try:
        # Read as Python itself reads it: with a byte order mark, or in the encoding it declares.
        lines = rule_lines(importlib.util.decode_source(path.read_bytes()))
        return transform.bound(id=name, doc=module.__doc__ or "", source=path, source_lines=lines)
    except TransformError as error:
        raise RewriterError(f"{error} ({path.name})") from None
    except (OSError, SyntaxError, ValueError) as error:  # changed since it was loaded
        raise RewriterError(f"cannot read {path.name} again: {_line(error)}") from None


def rule_lines(source: str) -> int:
    """Count the lines of a transform, without its docstring, its examples and empty lines."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in [*tree.body[:1], *ast.walk(tree)]:
        is_doc = node is tree.body[0] and isinstance(node, ast.Expr)
        is_examples = isinstance(node, ast.keyword) and node.arg == "examples"
        if isinstance(node, (ast.stmt, ast.keyword)) and (is_doc or is_examples):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.split("\n"), start=1)
    return sum(bool(line.strip()) for number, line in lines if number not in left_out)


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _load_file(path: Path) -> ModuleType:
    name = f"rewriter_user_transforms.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    keep, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing in the user's folder
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for our results
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        kind = type(error).__name__
        raise RewriterError(f"cannot load {path.name}: {kind}: {_line(error)}") from None
    finally:
        sys.dont_write_bytecode = keep
    return module


def _user_transforms(folder: Path) -> list[Transform]:
    if not folder.is_dir():
        raise RewriterError(f"--transforms {folder}: no such folder")
    files = sorted(p for p in folder.glob("*.py") if not p.name.startswith("_"))
    if not files:
        raise RewriterError(f"--transforms {folder}: no transform (*.py) in it")
    return [_bind(path.stem, _load_file(path), path) for path in files]


def load(folders: Sequence[Path] = ()) -> tuple[Transform, ...]:
    """Return our transforms and those of the user's folders, sorted by id.

    Raises RewriterError for a file that is not a transform, an id used twice, and an `after` that
    names no transform or goes in a circle, and under `python -OO`.
    """
    if sys.flags.optimize >= 2:
        raise RewriterError(
            "Python's -OO takes away the docstrings that describe the transforms; run without -OO"
            " and without PYTHONOPTIMIZE=2"
        )
    package = rewriter.transforms
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_")
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    found = [_bind(name, module, Path(module.__file__ or "")) for name, module in modules.items()]
    for folder in folders:
        found += _user_transforms(folder)
    by_id: dict[str, Transform] = {}
    for transform in found:
        if transform.id in by_id:
            raise RewriterError(f"two transforms are named {transform.id}; rename one of the files")
        by_id[transform.id] = transform
    for transform in found:
        for name in transform.after:
            if name not in by_id:
                raise RewriterError(
                    f"transform {transform.id}: after names {name!r}, which is none"
                )
    generations(found)
    return tuple(by_id[name] for name in sorted(by_id))


def generations(transforms: Sequence[Transform]) -> dict[str, int]:
    """Return for each id how many steps come before it. Raises RewriterError for circles."""
    by_id = {transform.id: transform for transform in transforms}
    depth: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise RewriterError(f"transforms come after each other: {' -> '.join([*above, name])}")
        if name not in depth:
            before = [b for b in by_id[name].after if b in by_id]
            depth[name] = max((visit(b, (*above, name)) + 1 for b in before), default=0)
        return depth[name]

    for name in sorted(by_id):
        visit(name, ())
    return depth


def select(
    transforms: Sequence[Transform], only: Sequence[str], skip: Sequence[str]
) -> tuple[Transform, ...]:
    """Return what `--only` and `--skip` choose. Raises RewriterError for unknown ids."""
    known = {transform.id for transform in transforms}
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in known:
                raise RewriterError(f"{option} {name}: no such transform; --list shows all of them")
    both = sorted(set(only) & set(skip))
    if both:
        raise RewriterError(f"--only and --skip both name {', '.join(both)}")
    return tuple(t for t in transforms if (not only or t.id in only) and t.id not in skip)
