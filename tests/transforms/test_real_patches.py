"""The patches of a real build, through git, on the pristine vLLM 0.18.0."""

from __future__ import annotations

import os
import subprocess
from email import message_from_bytes
from pathlib import Path

import pytest

from rewriter.base import Base
from rewriter.catalog import load
from rewriter.rewrite import Rewritten
from rewriter.series import write_patches

TRANSFORMS = {t.id: t for t in load()}
#: git reads no configuration of the machine, and knows who commits.
ENV = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_COMMITTER_NAME": "tester",
    "GIT_COMMITTER_EMAIL": "tester@localhost",
    "GIT_AUTHOR_NAME": "tester",
    "GIT_AUTHOR_EMAIL": "tester@localhost",
}


def git(folder: Path, *args: object) -> str:
    command = ["git", *map(str, args)]
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(rewrite_base) -> Rewritten:
    return rewrite_base(tuple(TRANSFORMS.values()))


@pytest.fixture(scope="module")
def patches(base: Base, whole: Rewritten, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("patches")
    write_patches(
        base,
        lambda path: (base.root / path).read_bytes(),
        whole,
        tuple(TRANSFORMS.values()),
        out,
    )
    return out / "patches"


@pytest.fixture(scope="module")
def pristine(base: Base, whole: Rewritten, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the files that are edited, as they are at the base."""
    repo = tmp_path_factory.mktemp("pristine")
    for path in whole.files:
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_bytes((base.root / path).read_bytes())
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "base")
    return repo


@pytest.fixture
def repo(pristine: Path) -> Path:
    git(
        pristine,
        "reset",
        "-q",
        "--hard",
        git(pristine, "rev-list", "--max-parents=0", "HEAD").strip(),
    )
    return pristine


def test_one_patch_for_each_applied_transform(whole: Rewritten, patches: Path) -> None:
    applied = [id for id, _ in whole.series]
    assert sorted(p.stem for p in (patches / "standalone").iterdir()) == sorted(applied)
    numbered = [f"{n:04}-{id}.patch" for n, id in enumerate(applied, start=1)]
    assert sorted(p.name for p in (patches / "series").iterdir()) == numbered


def test_each_standalone_patch_applies_alone(whole: Rewritten, patches: Path, repo: Path) -> None:
    start = git(repo, "rev-parse", "HEAD").strip()
    for patch in sorted((patches / "standalone").iterdir()):
        git(repo, "apply", "--check", patch)
        git(repo, "am", "-q", "--keep-non-patch", patch)
        for path, data in whole.alone[patch.stem].items():
            assert (repo / path).read_bytes() == data
        transform = TRANSFORMS[patch.stem]
        assert (
            git(repo, "log", "-1", "--format=%s").strip() == f"[{transform.tag}] {transform.title}"
        )
        git(repo, "reset", "-q", "--hard", start)


def test_the_series_in_order_gives_the_whole_edit(
    whole: Rewritten, patches: Path, repo: Path
) -> None:
    git(repo, "am", "-q", *sorted((patches / "series").iterdir()))
    for path, data in whole.files.items():
        assert (repo / path).read_bytes() == data


def test_headers(patches: Path) -> None:
    mail = message_from_bytes((patches / "standalone" / "worker_daemon.patch").read_bytes())
    assert mail["Subject"].startswith("[PATCH] [Platform] Let executor workers start processes")
    body = mail.get_payload()
    assert "\nOrigin: other, vllm-ascend-rewriter" in body
    assert "\nForwarded: not-needed" in body
    assert "\nBase-Version: 0.18.0" in body
    assert "Signed-off-by" not in body
    assert "diff --git a/vllm/v1/executor/multiproc_executor.py" in body
