"""Patches go through real git: `git apply --check` and `git am`, alone and in order."""

from __future__ import annotations

import email
import email.header
import email.policy
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rewriter import __version__, diffs, series
from rewriter.base import Base
from rewriter.errors import RewriterError
from rewriter.outcome import FileChange, Outcome, Result
from rewriter.rewrite import Rewritten
from rewriter.transform import Transform, Upstream

PLAIN = b"import os\n\n\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n"
ORIGINALS = {
    "vllm/plain.py": PLAIN,
    "vllm/deep/other.py": b"X = [\n    1,\n    2,\n]\n",
    "vllm/crlf.py": b"a = 1\r\nb = 2\r\nc = 3\r\n",
    "vllm/bom.py": b"\xef\xbb\xbfa = 1\nb = 2\n",
    "vllm/open_end.py": b"a = 1\nb = 2",
    "vllm/utf8.py": "s = 'grün'\nt = '模型'\n".encode(),
    "vllm/latin1.py": b"# -*- coding: latin-1 -*-\ns = 'gr\xfcn'\nt = 1\n",
}

NASTY = (
    """Let a body look like mail – 昇腾.

From: nobody <nobody@example.invalid>
Subject: [PATCH] not the subject
Date: Thu, 1 Jan 1970 00:00:00 +0000

From deadbeef Mon Sep 17 00:00:00 2001
>From here on
[PATCH] in brackets
---
--- a/vllm/plain.py
+++ b/vllm/plain.py
diff --git a/vllm/plain.py b/vllm/plain.py
Index: vllm/plain.py
--
-- """
    + """
    indented code stays
-- >8 --
Signed-off-by: a line of the docstring
The end, with “quotes”.
"""
)


@dataclass(frozen=True)
class StandIn:
    path: str
    scope: str = ""
    edits: Sequence[object] = ()

    def mentions(self, text: str) -> bool:
        return False


def transform(
    id: str,
    paths: Sequence[str],
    doc: str = "",
    *,
    upstream: Upstream | None = None,
    after: Sequence[str] = (),
    seed: str | Sequence[str] = "platform/3",
) -> Transform:
    made = Transform(
        seed=seed,
        tag="Bugfix",
        vllm=">=0.18",
        upstream=upstream or Upstream.pending(),
        remove_when="vLLM does\n    it itself",
        edits=[StandIn(path) for path in paths],
        after=after,
    )
    doc = doc or f"Change {id}.\n\nIt was wrong.\n"
    return made.bound(id=id, doc=doc, source=Path(f"{id}.py"), source_lines=20)


def rewritten(
    alone: Mapping[str, Mapping[str, bytes]],
    order: Sequence[tuple[str, Mapping[str, bytes]]],
) -> Rewritten:
    results = []
    for id in sorted(alone):
        changes = [
            FileChange(path, 1, *diffs.count(ORIGINALS.get(path), after))
            for path, after in sorted(alone[id].items())
        ]
        results.append(Result(id, Outcome.APPLIED, files=tuple(changes)))
    files: dict[str, bytes] = {}
    for _, touched in order:
        files.update(touched)
    return Rewritten(tuple(results), files, alone, tuple(order))


def git(folder: Path, *arguments: str, quiet: bool = False) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@example.invalid",
        "GIT_COMMITTER_NAME": "Test",
        "GIT_COMMITTER_EMAIL": "test@example.invalid",
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    if quiet:
        assert done.stderr == b""
    return done.stdout.decode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for path, data in ORIGINALS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "core.autocrlf", "false")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    git(folder, "tag", "pristine")
    return folder


BASE = Base(version="0.18.0", sha256="ab" * 32, origin="sdist", root=Path(), file="x.tar.gz")

ONE = PLAIN.replace(b"return 1", b"return 10").replace(b"import os\n", b"import os\nimport sys\n")
TWO = PLAIN.replace(b"return 2", b"return 20").replace(b"import os\n", b"import os\nimport sys\n")
BOTH = ONE.replace(b"return 2", b"return 20")
ODD = {
    "vllm/bom.py": b"\xef\xbb\xbfa = 3\nb = 2\n",
    "vllm/open_end.py": b"a = 1\nb = 3",
    "vllm/utf8.py": "s = 'grün'\nt = '昇腾 模型'\n".encode(),
    "vllm/latin1.py": b"# -*- coding: latin-1 -*-\ns = 'gr\xfcn, \xe4'\nt = 1\n",
}


def everything() -> tuple[Rewritten, list[Transform]]:
    other = {"vllm/deep/other.py": b"X = [\n    1,\n    2,\n    3,\n]\n"}
    alone = {
        "one": {"vllm/plain.py": ONE},
        "two": {"vllm/plain.py": TWO, **other},
        "odd": ODD,
        "three": {"vllm/plain.py": ONE.replace(b"10", b"11")},
    }
    order = [
        ("odd", ODD),
        ("one", {"vllm/plain.py": ONE}),
        ("three", {"vllm/plain.py": ONE.replace(b"10", b"11")}),
        ("two", {"vllm/plain.py": BOTH.replace(b"10", b"11"), **other}),
    ]
    transforms = [
        transform("one", ["vllm/plain.py"]),
        transform("two", ["vllm/plain.py", "vllm/deep/other.py"]),
        transform("odd", sorted(ODD), NASTY),
        transform("three", ["vllm/plain.py"], after=["one", "not_applied"]),
        transform("not_applied", ["vllm/plain.py"], after=["one"]),
    ]
    return rewritten(alone, order), transforms


def written(tmp_path: Path, done: Rewritten, transforms: Sequence[Transform]) -> Path:
    series.write_patches(BASE, ORIGINALS.__getitem__, done, transforms, tmp_path / "out")
    return tmp_path / "out" / "patches"


def test_each_patch_alone(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    patches = written(tmp_path, done, transforms)
    assert [path.stem for path in sorted((patches / "standalone").iterdir())] == sorted(done.alone)
    for id, files in done.alone.items():
        git(repository, "reset", "-q", "--hard", "pristine")
        patch = patches / "standalone" / f"{id}.patch"
        git(repository, "apply", "--check", str(patch))
        git(repository, "am", "-q", "--keep-non-patch", str(patch))
        for path, data in {**ORIGINALS, **files}.items():
            assert (repository / path).read_bytes() == data, (id, path)


def test_the_series_in_order(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    patches = sorted((written(tmp_path, done, transforms) / "series").iterdir())
    names = ["0001-odd.patch", "0002-one.patch", "0003-three.patch", "0004-two.patch"]
    assert [patch.name for patch in patches] == names
    git(repository, "am", "-q", "--keep-non-patch", *map(str, patches))
    for path, data in {**ORIGINALS, **done.files}.items():
        assert (repository / path).read_bytes() == data, path
    subjects = git(repository, "log", "--format=%s", "pristine..").splitlines()
    assert subjects == [
        "[Bugfix] Change two",
        "[Bugfix] Change three",
        "[Bugfix] Change one",
        "[Bugfix] Let a body look like mail – 昇腾",
    ]
    assert git(repository, "status", "--porcelain") == ""


def test_a_nasty_docstring_arrives_whole(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    git(
        repository,
        "am",
        "-q",
        "--keep-non-patch",
        str(written(tmp_path, done, transforms) / "series/0001-odd.patch"),
    )
    author, _, message = git(repository, "log", "-1", "--format=%an <%ae>%n%B").partition("\n")
    assert author == series.AUTHOR
    body = message.split("\n")[2:]
    for line in NASTY.split("\n")[2:]:
        assert any(got.strip() == line.strip() for got in body), line
    assert "    indented code stays" in body
    for field in (
        f"Origin: other, vllm-ascend-rewriter {__version__}",
        "Forwarded: no",
        "Upstream-Status: Pending",
        "Seed-Rows: platform/3",
        "Remove-When: vLLM does it itself",
        "Base-Version: 0.18.0",
    ):
        assert field in body, field
    # What the docstring says must not become a sign-off or a trailer of the commit.
    trailers = git(repository, "log", "-1", "--format=%(trailers:only=true)")
    assert "Signed-off-by" not in trailers
    assert "Base-Version: 0.18.0" in trailers


def test_many_patches_in_one_mailbox(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    patches = sorted((written(tmp_path, done, transforms) / "series").iterdir())
    box = tmp_path / "series.mbox"
    box.write_bytes(b"".join(patch.read_bytes() for patch in patches))
    git(repository, "am", "-q", "--keep-non-patch", str(box))
    assert len(git(repository, "log", "--format=%h", "pristine..").split()) == 4


def test_crlf_needs_keep_cr_and_says_so(repository: Path, tmp_path: Path) -> None:
    after = {"vllm/crlf.py": b"a = 1\r\nb = 22\r\nc = 3\r\n"}
    done = rewritten({"crlf": after}, [("crlf", after)])
    patch = written(tmp_path, done, [transform("crlf", ["vllm/crlf.py"])]) / "standalone/crlf.patch"
    assert b"\nApply-With: git am --keep-cr" in patch.read_bytes()
    git(repository, "apply", "--check", str(patch))
    git(repository, "am", "-q", "--keep-cr", str(patch))
    assert (repository / "vllm/crlf.py").read_bytes() == after["vllm/crlf.py"]


def test_a_moved_tree_merges_three_ways(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    patch = written(tmp_path, done, transforms) / "standalone/one.patch"
    moved = b"import os\n\nNEW = 0\n\n\ndef one():\n    return 1\n" + b"\n\ndef zero(): ...\n"
    (repository / "vllm/plain.py").write_bytes(moved + PLAIN[PLAIN.index(b"\n\ndef two") :])
    git(repository, "commit", "-q", "-a", "-m", "move")
    git(repository, "am", "-q", "-3", str(patch))
    assert b"return 10" in (repository / "vllm/plain.py").read_bytes()


def test_a_new_file(repository: Path, tmp_path: Path) -> None:
    def read(path: str) -> bytes:
        if path in ORIGINALS:
            return ORIGINALS[path]
        raise FileNotFoundError(path)

    after = {"vllm/new.py": b"a = 1\n"}
    done = rewritten({"new": after}, [("new", after)])
    series.write_patches(BASE, read, done, [transform("new", ["vllm/new.py"])], tmp_path)
    git(repository, "am", "-q", str(tmp_path / "patches/standalone/new.patch"))
    assert (repository / "vllm/new.py").read_bytes() == b"a = 1\n"


def test_executable_files_keep_their_mode(repository: Path, tmp_path: Path) -> None:
    """Neither `git apply` nor `git am` warns, and the files stay as executable as they were."""
    done, transforms = everything()
    (repository / "vllm/plain.py").chmod(0o755)
    git(repository, "commit", "-q", "-a", "-m", "executable")
    git(repository, "tag", "-f", "pristine")
    base = Base("0.18.0", "ab" * 32, "tree", repository)
    series.write_patches(base, ORIGINALS.__getitem__, done, transforms, tmp_path)
    two = (tmp_path / "patches/standalone/two.patch").read_text("utf-8")
    modes = [line.split()[2] for line in two.splitlines() if line.startswith("index ")]
    assert modes == ["100644", "100755"]
    for id in done.alone:
        patch = str(tmp_path / "patches/standalone" / f"{id}.patch")
        git(repository, "apply", "--check", patch, quiet=True)
    patches = map(str, sorted((tmp_path / "patches/series").iterdir()))
    git(repository, "am", "-q", "--keep-non-patch", *patches, quiet=True)
    assert git(repository, "diff", "--summary", "pristine") == ""


def test_the_standalone_patch_names_what_it_folds_in(tmp_path: Path) -> None:
    done, transforms = everything()
    patches = written(tmp_path, done, transforms)
    assert b"\nRequires: one\n" in (patches / "standalone/three.patch").read_bytes()
    assert b"Requires:" not in (patches / "series/0003-three.patch").read_bytes()
    assert b"Requires:" not in (patches / "standalone/one.patch").read_bytes()


def test_prerequisites_of_prerequisites() -> None:
    known = {
        id: transform(id, ["vllm/plain.py"], after=after)
        for id, after in {"a": [], "b": ["a"], "c": ["b"], "d": ["c", "gone"]}.items()
    }
    assert series.prerequisites(known["d"], known, "abc") == ("a", "b", "c")
    assert series.prerequisites(known["d"], known, "ac") == ("a", "c")


def test_the_header_is_a_mail(tmp_path: Path) -> None:
    long = "Say what is wrong in a first line of exactly as many letters as may be."
    deltas = [series.Delta("vllm/plain.py", PLAIN, ONE)]
    for title in (long, "Grüße an alle Leser, die bis hierher gekommen sind, 昇腾 昇腾 昇腾 昇腾."):
        data = series.mail(
            BASE, transform("a", ["vllm/plain.py"], f"{title}\n\nBody.\n"), deltas, place=(3, 12)
        )
        lines = data.split(b"\n")
        assert lines[0] == b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001"
        assert all(len(line) <= 78 for line in lines[: lines.index(b"")])
        read = email.message_from_bytes(data.partition(b"\n")[2], policy=email.policy.default)
        assert read["Subject"] == f"[PATCH 03/12] [Bugfix] {title.rstrip('.')}"
        assert read["From"] == series.AUTHOR
        assert read["Date"] == series.DATE
        assert data.endswith(f"\n-- \n{__version__}\n\n".encode())


def test_the_diffstat_looks_like_git(repository: Path, tmp_path: Path) -> None:
    done, transforms = everything()
    patch = (written(tmp_path, done, transforms) / "standalone/two.patch").read_text("utf-8")
    stat = patch.partition("\n---\n")[2].partition("\n\n")[0]
    for path, data in done.alone["two"].items():
        (repository / path).write_bytes(data)
    assert stat == git(repository, "diff", "--stat").rstrip("\n")


@pytest.mark.parametrize(
    ("upstream", "fields"),
    [
        (
            Upstream.pending("needs a test"),
            ["Forwarded: no", "Upstream-Status: Pending [needs a test]"],
        ),
        (
            Upstream.submitted("https://host.example/pull/7, for https://host.example/issues/6."),
            ["Bug: https://host.example/issues/6", "Forwarded: https://host.example/pull/7"],
        ),
        (Upstream.denied("said no in #12"), ["Forwarded: said no in #12"]),
        (
            Upstream.backport("#34, in 0.19.0"),
            ["Applied-Upstream: #34, in 0.19.0", "Forwarded: not-needed"],
        ),
        (Upstream.inappropriate("an Ascend switch"), ["Forwarded: not-needed"]),
    ],
)
def test_dep3_follows_the_upstream_status(upstream: Upstream, fields: list[str]) -> None:
    deltas = [series.Delta("vllm/plain.py", PLAIN, ONE)]
    text = series.mail(BASE, transform("a", ["vllm/plain.py"], upstream=upstream), deltas).decode()
    for field in fields:
        assert f"\n{field}\n" in text
    assert ("Applied-Upstream" in text) == (upstream.status == "Backport")


def test_no_seed_and_a_commit() -> None:
    base = Base("0.18.0", "ab" * 32, "checkout", Path(), commit="1234567890" * 4)
    deltas = [series.Delta("vllm/plain.py", PLAIN, ONE)]
    text = series.mail(base, transform("a", ["vllm/plain.py"], seed=()), deltas).decode()
    assert text.startswith(f"From {base.commit} ")
    assert f"\nbase-commit: {base.commit}\n---\n" in text
    assert "Seed-Rows" not in text
    assert "Signed-off-by" not in text


def test_the_same_bytes_twice() -> None:
    done, transforms = everything()
    first = list(series.render(BASE, ORIGINALS.__getitem__, done, transforms))
    again = list(series.render(BASE, ORIGINALS.__getitem__, done, transforms[::-1]))
    assert first == again


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    done, transforms = everything()
    (tmp_path / "patches").write_text("a file in its place")
    with pytest.raises(RewriterError, match="cannot write") as caught:
        series.write_patches(BASE, ORIGINALS.__getitem__, done, transforms, tmp_path)
    assert "\n" not in str(caught.value)
