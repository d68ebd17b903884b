"""Opening vLLM from a git checkout."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from base_kit import Opener, listing, sdist_bytes

from rewriter.catalog import load
from rewriter.series import Delta, mail


@pytest.fixture
def opener(tmp_path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture
def checkout(monkeypatch, tmp_path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(sdist_bytes(vllm__odd=b"odd"))) as tar:
        tar.extractall(tmp_path, filter="data")
    tree = tmp_path / "vllm-9.9.9"
    monkeypatch.setenv("HOME", str(tmp_path))  # no git configuration of whoever runs the tests
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tree / "vllm/_version.py").unlink()
    (tree / ".gitignore").write_bytes(b"*.so\nvllm/_version.py\n")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    return tree


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_checkout_with_a_tag(opener, checkout):
    git(checkout, "tag", "nightly")
    git(checkout, "tag", "v1.2.3rc1")
    git(checkout, "tag", "v1.2.3")
    (checkout / "vllm/_C.abi3.so").write_bytes(b"ignored by git")
    (checkout / "vllm/_version.py").write_bytes(b"__version__ = 'stale'\n")
    before = listing(checkout)
    opened = opener(checkout)
    assert listing(checkout) == before  # the index, too
    assert (opened.version, opened.origin, opened.file) == ("1.2.3", "checkout", None)
    assert opened.commit == git(checkout, "rev-parse", "HEAD")
    assert not (opened.root / "vllm/_C.abi3.so").exists()
    assert not (opened.root / ".git").exists()
    names: dict[str, object] = {}
    exec((opened.root / "vllm/_version.py").read_bytes(), names)
    assert names["__version_tuple__"] == (1, 2, 3)
    assert names["__commit_id__"] == "g" + opened.commit[:9]
    assert opener.said == []


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        ("v0.18.0 20300101 v99 v2030.1.1.1 9.9.9 V9.9.9 v9.9.9-x v9.9.9+x v9.9.9.dev1", "0.18.0"),
        ("v0.18.0rc2 v0.18.0rc1", "0.18.0rc2"),
        ("v0.18.0 v0.18.0rc1 v0.17.9", "0.18.0"),
        ("v0.18.0.post1 v0.18.0", "0.18.0.post1"),
        ("20300101 v1!2.0.0 nightly", None),
    ],
)
def test_only_tags_of_releases_count(opener, checkout, tags, version):
    for tag in tags.split():
        git(checkout, "tag", tag)
    if version:
        assert opener(checkout).version == version
    else:
        assert "no release tag such as v0.18.0" in opener.refused(checkout)


def test_checkout_without_a_tag(opener, checkout):
    assert "--base-version" in opener.refused(checkout)
    git(checkout, "tag", "v1.2.3")
    git(checkout, "commit", "-qm", "two", "--allow-empty")
    assert "v0.18.0" in opener.refused(checkout)
    assert opener(checkout, base_version="1.2.4").version == "1.2.4"


def test_checkout_with_changes(opener, checkout, monkeypatch):
    (checkout / "vllm/__init__.py").write_bytes(b"changed = 1\n")
    (checkout / "vllm/odd").unlink()
    (checkout / "vllm/new.py").write_bytes(b"")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a git hook
    opened = opener(checkout, base_version="1.2.3")
    assert (opened.root / "vllm/__init__.py").read_bytes() == b"changed = 1\n"
    assert not (opened.root / "vllm/odd").exists()
    assert not (opened.root / "vllm/new.py").exists()
    assert opener.said == [
        "warning: 2 files of the checkout differ from its commit; they are taken as they lie, "
        "and the commit is recorded with -dirty",
        "1 files below vllm/ are not tracked by git; they are left out",
    ]
    monkeypatch.delenv("GIT_DIR")
    commit = git(checkout, "rev-parse", "HEAD")
    assert opened.commit == f"{commit}-dirty"
    names: dict[str, object] = {}
    exec((opened.root / "vllm/_version.py").read_bytes(), names)
    assert names["__commit_id__"] == f"g{commit[:9]}-dirty"


@pytest.mark.parametrize("change", ["staged", "elsewhere", "sparse"])
def test_any_change_makes_it_dirty(opener, checkout, change):
    if change == "staged":
        (checkout / "vllm/__init__.py").write_bytes(b"changed = 1\n")
        git(checkout, "add", "-A")
    elif change == "elsewhere":
        (checkout / "PKG-INFO").write_bytes(b"Name: vllm\n")
    else:
        git(checkout, "sparse-checkout", "set", "requirements")
        git(checkout, "checkout", "HEAD", "vllm/__init__.py", "--ignore-skip-worktree-bits")
        assert not (checkout / "vllm/odd").exists()
    assert opener(checkout, base_version="1.2.3").commit.endswith("-dirty")


def test_patches_of_a_dirty_checkout_say_so_and_apply(opener, checkout):
    (checkout / "requirements/common.txt").write_bytes(b"six\nregex\n")
    opened = opener(checkout, base_version="1.2.3")
    text = mail(opened, load()[0], [Delta("vllm/__init__.py", b"", b"x = 1\n")]).decode()
    assert f"\nbase-commit: {opened.commit}\n" in text and "-dirty\n---\n" in text
    (checkout.parent / "x.patch").write_text(text)
    git(checkout, "am", "-q", str(checkout.parent / "x.patch"))
    assert (checkout / "vllm/__init__.py").read_bytes() == b"x = 1\n"


def test_linked_worktree(opener, checkout, tmp_path):
    git(checkout, "worktree", "add", "-q", str(tmp_path / "linked"))
    assert opener(tmp_path / "linked", base_version="1.2.3").origin == "checkout"


def test_checkout_that_leads_out(opener, checkout, tmp_path):
    (checkout / "vllm/link").symlink_to("/etc/hostname")
    git(checkout, "add", "-A")
    assert "a link out of its tree" in opener.refused(checkout, base_version="1")
    git(checkout, "rm", "-qf", "vllm/link")
    (checkout / "requirements").rename(tmp_path / "elsewhere")
    (checkout / "requirements").symlink_to(tmp_path / "elsewhere")
    assert "leads out of the checkout" in opener.refused(checkout, base_version="1")


def test_broken_checkout(opener, checkout, monkeypatch):
    (checkout / ".git/HEAD").unlink()
    assert "git cannot read the checkout" in opener.refused(checkout)
    monkeypatch.setenv("PATH", "")
    assert "git cannot be run" in opener.refused(checkout)


def test_a_checkout_of_somebody_else(opener, checkout, monkeypatch, tmp_path):
    """git names a cure in the lines after the first."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/git"
    real = shutil.which("git")
    script.write_text(f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    message = opener.refused(checkout)
    assert "dubious ownership" in message
    assert message.endswith(
        f"; run git config --global --add safe.directory {checkout}, or chown it"
    )
    git(checkout, "config", "--global", "--add", "safe.directory", str(checkout))
    assert opener(checkout, base_version="1.2.3").origin == "checkout"


def test_odd_names_and_links_of_a_checkout(opener, checkout):
    name = os.fsdecode(b"b\xff.py")
    (checkout / "vllm" / name).write_bytes(b"")
    opener(checkout, base_version="1.2.3")  # not tracked
    git(checkout, "add", "-A")
    assert "odd name 'vllm/b\\udcff.py'" in opener.refused(checkout, base_version="1.2.3")
    git(checkout, "rm", "-qf", f"vllm/{name}")
    (checkout / "vllm/ignored.so").write_bytes(b"")
    (checkout / "vllm/link").symlink_to("ignored.so")
    git(checkout, "add", "-A")
    message = opener.refused(checkout, base_version="1.2.3")
    assert f"{checkout}/vllm/link is a link to a file that is not taken along" in message
