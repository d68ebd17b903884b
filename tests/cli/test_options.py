"""What each option does."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cli_kit import SCRIPT, Kit, error_line, litter

from rewriter import __version__, transforms

WHEELS = [
    f"vllm-0.18.0+npu.{__version__}-py3-none-any.whl",
    f"vllm_ascend_patched-0.18.0+npu.{__version__}-py3-none-any.whl",
]
PATCHES = ["patches/series/0001-answer.patch", "patches/standalone/answer.patch"]


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_build_leaves_wheels_patches_and_reports(kit: Kit) -> None:
    report = kit.build()
    assert files(kit.out) == sorted([*WHEELS, *PATCHES, "report.html", "report.json"])
    assert report == json.loads((kit.out / "report.json").read_text())
    assert set(report["artifacts"]) == {*WHEELS, *PATCHES, "report.html"}
    for name, sha256 in report["artifacts"].items():
        assert hashlib.sha256((kit.out / name).read_bytes()).hexdigest() == sha256
    (entry,) = report["transforms"]
    assert (entry["id"], entry["outcome"], entry["seed"]) == ("answer", "applied", [])
    assert entry["files"] == [{"path": "vllm/answer.py", "edits": 1, "added": 1, "removed": 1}]
    with zipfile.ZipFile(kit.out / WHEELS[0]) as wheel:
        assert wheel.read("vllm/answer.py") == b"def answer():\n    return 2\n"


def test_build_does_not_change_the_source_or_write_elsewhere(kit: Kit) -> None:
    before = {p: p.read_bytes() for p in kit.tree.rglob("*") if p.is_file()}
    kit.build()
    assert {p: p.read_bytes() for p in kit.tree.rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in kit.folder.iterdir()) == ["cache", "out", "transforms", "tree"]
    assert files(kit.transforms) == ["answer.py"]


def test_second_build_is_the_same(kit: Kit) -> None:
    first = kit.build()["artifacts"]
    assert kit.build()["artifacts"] == first


def test_only_our_own_artefacts_are_replaced(kit: Kit) -> None:
    kit.build()
    (kit.out / "mine.txt").write_text("mine")
    (kit.out / "patches" / "mine.patch").write_text("mine")
    changed = kit.out / PATCHES[0]
    changed.write_text("changed by hand")
    (kit.transforms / "answer.py").rename(kit.transforms / "other.py")
    done = kit.plain(
        *["--source", kit.tree, "--transforms", kit.transforms, "--only", "other"],
        *["--out", kit.out],
    )
    assert done.returncode == 0, done.stderr
    left = files(kit.out)
    assert {"mine.txt", "patches/mine.patch", PATCHES[0]} <= set(left)
    assert changed.read_text() == "changed by hand"
    assert PATCHES[1] not in left  # ours, and unchanged: gone with its transform
    assert "patches/standalone/other.patch" in left


def test_no_local_label(kit: Kit) -> None:
    artifacts = kit.build("--no-local-label")["artifacts"]
    assert "vllm-0.18.0-py3-none-any.whl" in artifacts
    assert "vllm_ascend_patched-0.18.0-py3-none-any.whl" in artifacts


def test_check_writes_nothing(kit: Kit) -> None:
    done = kit.run("--check")
    assert done.returncode == 0, done.stderr
    assert "answer" in done.stdout and "1 applied" in done.stdout
    assert not kit.out.exists() and not (kit.folder / "dist").exists()


def test_check_json_has_no_colour_and_no_path(kit: Kit) -> None:
    kit.env["FORCE_COLOR"] = "1"
    done = kit.run("--check", "--json")
    report = json.loads(done.stdout)
    assert report["base"]["name"] == "vllm"
    assert report["schema"] == 1
    assert "\x1b" not in done.stdout
    assert str(kit.folder) not in done.stdout


def test_diff_applies(kit: Kit) -> None:
    done = kit.run("--diff")
    assert done.returncode == 0
    applied = subprocess.run(
        ["git", "apply", "-"], input=done.stdout, text=True, cwd=kit.tree, check=True
    )
    assert applied.returncode == 0
    assert (kit.tree / "vllm/answer.py").read_text() == "def answer():\n    return 2\n"


def test_diff_of_one(kit: Kit) -> None:
    own = ["--source", kit.tree, "--transforms", kit.transforms]
    done = kit.plain(*own, "--diff", "answer")
    assert done.returncode == 0
    assert done.stdout.count("diff --git") == 1
    assert "+    return 2" in done.stdout


def test_diff_into_a_closed_pipe_is_quiet(kit: Kit) -> None:
    command = " ".join(f"'{part}'" for part in kit.command("--diff", "--quiet"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"],
        env=kit.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


def test_tree(kit: Kit) -> None:
    target = kit.folder / "edited"
    assert kit.run("--tree", target).returncode == 0
    assert (target / "vllm/answer.py").read_text() == "def answer():\n    return 2\n"
    assert (target / "ascend_runtime/__init__.py").is_file()
    assert (target / "requirements/common.txt").is_file()


def test_tree_refuses_a_folder_with_something_in_it(kit: Kit) -> None:
    target = kit.folder / "edited"
    target.mkdir()
    (target / "mine").write_text("mine")
    assert "not an empty folder" in error_line(kit.run("--tree", target))
    assert litter(target) == ["mine"]


def test_list(kit: Kit) -> None:
    lines = kit.plain("--list").stdout.splitlines()
    folder = Path(transforms.__file__).parent
    assert [line.split()[0] for line in lines] == sorted(p.stem for p in folder.glob("[!_]*.py"))
    assert lines[-1].split()[:2] == ["worker_daemon", "platform/3"]
    entries = json.loads(kit.plain("--list", "--json").stdout)["transforms"]
    assert entries[-1]["seed"] == ["platform/3"]


def test_explain(kit: Kit) -> None:
    text = kit.plain("--explain", "worker_daemon").stdout
    assert "Let executor workers start processes of their own" in text
    assert "daemon" in text and "multiproc_executor.py" in text


@pytest.mark.parametrize("option", ["--explain", "--diff", "--only", "--skip"])
def test_unknown_id(kit: Kit, option: str) -> None:
    line = error_line(kit.plain(option, "nothing"))
    assert "nothing: no such transform; --list" in line


@pytest.mark.parametrize("options", [["--nothing"], ["--list", "--check"], ["--explain"]])
def test_wrong_options_are_one_line(kit: Kit, options: list[str]) -> None:
    done = kit.plain(*options)
    error_line(done)
    assert done.stderr.count("\n") == 1


def test_skip_of_the_name_edit_warns(kit: Kit) -> None:
    done = kit.run("--out", kit.out)
    assert "warning: without distribution_name" in done.stderr


def test_compare(kit: Kit) -> None:
    kit.build()
    same = kit.run("--compare", kit.out / "report.json")
    assert same.returncode == 0, same.stderr
    (kit.tree / "vllm/answer.py").write_text("def answer():\n    return 2\n")
    done = kit.run("--compare", kit.out / "report.json")
    assert done.returncode == 0
    assert "answer: applied -> already-upstream" in done.stdout
    changed = json.loads(kit.run("--compare", kit.out / "report.json", "--json").stdout)
    assert changed


def test_compare_with_something_else(kit: Kit) -> None:
    (kit.folder / "old.json").write_text("[]")
    assert "old.json" in error_line(kit.run("--compare", kit.folder / "old.json"))


def test_clean_cache(kit: Kit) -> None:
    kit.build()
    done = kit.plain("--clean-cache")
    assert done.returncode == 0
    assert done.stdout.startswith("freed ")


def test_base_version(kit: Kit) -> None:
    report = kit.build("--base-version", "0.18.1")
    assert report["base"]["version"] == "0.18.1"
    assert any(name.startswith("vllm-0.18.1+npu.") for name in report["artifacts"])


def test_help_says_the_exit_statuses(kit: Kit) -> None:
    done = kit.plain("--help")
    assert done.returncode == 0
    for status in ("0 all is well", "1 an edit", "2 bad input", "130 interrupted"):
        assert status in done.stdout


def test_progress_is_plain_without_a_terminal(kit: Kit) -> None:
    done = kit.run("--check")
    assert "\x1b" not in done.stderr
    assert "edit vLLM 0.18.0: " in done.stderr
    assert kit.run("--check", "--quiet").stderr == ""


def test_script_runs_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == __version__


@pytest.mark.parametrize(("after", "status"), [("2", 0), ("3", 1)])
def test_check_runs_the_examples_of_the_users_transforms(kit: Kit, after: str, status: int) -> None:
    file = kit.transforms / "answer.py"
    example = (
        'Example("vllm/answer.py", "def answer():\\n    return 1\\n",'
        f' "def answer():\\n    return {after}\\n")'
    )
    text = file.read_text().replace("import Transform", "import Example, Transform")
    file.write_text(text.rstrip().removesuffix(")") + f"    examples=[{example}],\n)\n")
    done = kit.run("--check")
    assert done.returncode == status, done.stderr
    assert ("warning: answer: example 1" in done.stderr) == bool(status)


def test_explain_as_json(kit: Kit) -> None:
    entry = json.loads(kit.plain("--explain", "worker_daemon", "--json").stdout)
    assert entry["id"] == "worker_daemon"
    assert entry["why"].startswith("Workers are daemonic")


def test_quiet_hides_no_warning(kit: Kit) -> None:
    """A checkout with changes is recorded as dirty, and said so."""
    import os

    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    author = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"], ["tag", "v0.18.0"]):
        subprocess.run(["git", *author, *command], cwd=kit.tree, env=env, check=True)
    (kit.tree / "vllm/logger.py").write_text("changed = 1\n")
    done = kit.run("--check", "--quiet", "--json")
    assert done.stderr.startswith("warning: ")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["base"]["commit"].endswith("-dirty")
