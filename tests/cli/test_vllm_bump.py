"""What a maintainer sees when a new vLLM has moved the ground: all of it, in one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_kit import Kit

from rewriter.base import Base


def edit(tree: Path, path: str, old: str, new: str) -> None:
    text = (tree / path).read_text()
    assert text.count(old) == 1, (path, old)
    (tree / path).write_text(text.replace(old, new))


@pytest.fixture
def moved(base: Base, tmp_path: Path) -> Path:
    """vLLM 0.18.0 as a later release might look."""
    tree = tmp_path / "vllm-next"
    shutil.copytree(base.root, tree)
    # A keyword has another name.
    edit(
        tree,
        "vllm/v1/executor/multiproc_executor.py",
        "daemon=True,\n        )\n\n        proc",
        "daemonic=True,\n        )\n\n        proc",
    )
    # A function has moved to another file.
    path = "vllm/v1/worker/utils.py"
    text = (tree / path).read_text()
    start = text.index("def bind_kv_cache(")
    end = text.index("\ndef ", start)
    (tree / path).write_text(text[:start] + text[end:])
    (tree / "vllm/v1/worker/kv_binding.py").write_text("# moved here\n\n\n" + text[start:end])
    # A file is gone.
    (tree / "vllm/model_executor/models/kimi_k25_vit.py").unlink()
    # A fix has been merged.
    edit(
        tree,
        "vllm/config/speculative.py",
        '            "kimi_k25",\n',
        '            "kimi_k25",\n            "minimax_m2",\n',
    )
    return tree


def test_everything_that_moved_is_in_one_report(kit: Kit, moved: Path) -> None:
    done = kit.plain("--source", moved, "--out", kit.out, "--json")
    assert done.returncode == 1
    assert not kit.out.exists()
    found = {entry["id"]: entry for entry in json.loads(done.stdout)["transforms"]}

    daemon = found["worker_daemon"]
    (problem,) = daemon["problems"]
    assert daemon["outcome"] == "drifted"
    assert problem["path"] == "vllm/v1/executor/multiproc_executor.py"
    assert problem["scope"] == "WorkerProc.make_worker_process"
    assert (problem["expected"], problem["found"]) == ("1 match", "0 matches")
    line = problem["nearest"][0]["line"]
    assert "context.Process(" in (moved / problem["path"]).read_text().splitlines()[line - 1]

    bind = found["bind_kv_cache_out_of_tree"]
    (problem,) = bind["problems"]
    assert bind["outcome"] == "target-missing"
    assert "no `bind_kv_cache`" in problem["found"]
    assert problem["nearest"][0]["path"] == "vllm/v1/worker/kv_binding.py"
    assert problem["nearest"][0]["line"] == 4

    kimi = found["kimi_rope_backend"]
    assert kimi["outcome"] == "target-missing"
    assert kimi["problems"][0]["found"] == "no such file"

    assert found["minimax_eagle3_allow"]["outcome"] == "already-upstream"
    assert found["multimodal_merge"]["outcome"] == "applied"


def test_the_table_says_it_for_people(kit: Kit, moved: Path) -> None:
    done = kit.plain("--source", moved, "--check")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    for part in (
        "vllm/v1/executor/multiproc_executor.py",
        "expected 1 match",
        "vllm/v1/worker/kv_binding.py:4",
        "no such file",
        "1 drifted",
        "2 target-missing",
    ):
        assert part in text, text
    assert "all is well" not in text
