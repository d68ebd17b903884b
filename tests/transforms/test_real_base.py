"""Every transform on the real vLLM 0.18.0: what the engine guarantees."""

from __future__ import annotations

import ast
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from ruff.__main__ import find_ruff_bin

from rewriter.base import Base
from rewriter.catalog import load
from rewriter.diffs import unified
from rewriter.outcome import Outcome
from rewriter.rewrite import Rewritten, rewrite

TRANSFORMS = load()


@pytest.fixture(scope="module")
def whole(rewrite_base) -> Rewritten:
    return rewrite_base(TRANSFORMS)


@pytest.fixture(scope="module")
def edited_tree(base: Base, whole: Rewritten, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of vLLM with the edits, and with its own linter settings."""
    root = tmp_path_factory.mktemp("edited")
    shutil.copytree(base.root / "vllm", root / "vllm")
    shutil.copy(base.root / "pyproject.toml", root)
    for path, data in whole.files.items():
        (root / path).write_bytes(data)
    return root


def ruff(tree: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [find_ruff_bin(), *args, "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_outcomes(whole: Rewritten) -> None:
    outcomes = {result.id: result.outcome for result in whole.results}
    already = {"full_graph_dispatch", "routed_experts_device"}
    assert outcomes == {
        t.id: Outcome.ALREADY_UPSTREAM if t.id in already else Outcome.APPLIED for t in TRANSFORMS
    }


def test_only_target_files_are_edited(base: Base, whole: Rewritten) -> None:
    assert set(whole.files) <= {path for t in TRANSFORMS for path in t.paths}
    for path, data in whole.files.items():
        assert data != (base.root / path).read_bytes()


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 20), marks=pytest.mark.slow)])
def test_random_orders_give_the_same_bytes(
    base: Base, whole: Rewritten, tmp_path, seeds: range
) -> None:
    shuffled = list(TRANSFORMS)
    for seed in seeds:
        random.Random(seed).shuffle(shuffled)
        work = tmp_path / str(seed)
        work.mkdir()
        assert rewrite(base, shuffled, work) == whole


def test_second_application_changes_nothing(base: Base, whole: Rewritten, tmp_path) -> None:
    for path in (base.root / "vllm").rglob("*.py"):
        target = tmp_path / "tree" / path.relative_to(base.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    for path, data in whole.files.items():
        target = tmp_path / "tree" / path
        target.unlink()
        target.write_bytes(data)
    (tmp_path / "work").mkdir()
    again = rewrite(
        Base(base.version, base.sha256, "tree", tmp_path / "tree"), TRANSFORMS, tmp_path / "work"
    )
    assert not again.files
    assert {result.outcome for result in again.results} == {Outcome.ALREADY_UPSTREAM}


def test_edited_files_compile(whole: Rewritten) -> None:
    for path, data in whole.files.items():
        compile(data, path, "exec", dont_inherit=True)


def test_edited_code_is_as_vllms_formatter_wants_it(whole: Rewritten, edited_tree: Path) -> None:
    done = ruff(edited_tree, "format", "--check", *whole.files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_edited_code_passes_vllms_own_linter(edited_tree: Path) -> None:
    done = ruff(edited_tree, "check", "vllm")
    assert done.returncode == 0, done.stdout + done.stderr


def test_inserts_are_small(whole: Rewritten) -> None:
    for result in whole.results:
        for file in result.files:
            assert file.added <= 40, (result.id, file)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.id)
def test_edits_meant_for_upstream_stand_alone(transform, whole: Rewritten) -> None:
    for path, data in whole.alone.get(transform.id, {}).items():
        if transform.upstream.stands_alone:
            assert b"ascend_runtime" not in data, path


def test_helpers_that_edits_call_exist(whole: Rewritten) -> None:
    root = Path(__file__).parents[2] / "ascend_runtime"
    called = set()
    for data in whole.files.values():
        for node in ast.walk(ast.parse(data)):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                if name.startswith("ascend_runtime.") and name.count(".") == 2:
                    called.add(tuple(name.split(".")[1:]))
    assert called
    for module, function in called:
        package = root / module / "__init__.py"
        tree = ast.parse((package if package.exists() else root / f"{module}.py").read_text())
        names = {n.name for n in tree.body if hasattr(n, "name")}
        names |= {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        assert function in names, (module, function)


def test_the_diff_of_each_transform_alone_and_together_agree(base: Base, whole: Rewritten) -> None:
    """A file edited by one transform alone is the same in every output."""
    for path, data in whole.files.items():
        editors = [id for id, files in whole.alone.items() if path in files]
        if len(editors) == 1:
            assert whole.alone[editors[0]][path] == data
            assert unified(path, (base.root / path).read_bytes(), data)
