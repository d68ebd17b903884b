"""Unified diffs over bytes, checked by what git makes of them."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from rewriter import diffs

PAIRS = {
    "crlf": (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
    "mixed line ends": (b"a\r\nb\nc\rd\n", b"a\nb\nc\rD\n"),
    "bom": (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nc\n"),
    "no final newline": (b"a\nb", b"a\nc"),
    "newline added": (b"a\nb", b"a\nb\n"),
    "newline lost": (b"a\nb\n", b"a\nb"),
    "no utf-8": (b"a = '\xfc'\nb\n", b"a = '\xfc\xff'\nb\n"),
    "emptied": (b"a\nb\n", b""),
    "filled": (b"", b"a\nb\n"),
    "created": (None, b"a\n"),
    "created empty": (None, b""),
    "deleted": (b"a\nb", None),
    "form feed": (b"a\n\x0cb\nc\n", b"a\n\x0cb\nd\n"),
}


def apply(folder: Path, path: str, before: bytes | None, patch: bytes) -> bytes | None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if before is not None:
        target.write_bytes(before)
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=patch,
        capture_output=True,
        check=False,
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(folder)},
    )
    assert done.returncode == 0, (before, patch, done.stderr)
    return target.read_bytes() if target.exists() else None


@pytest.mark.parametrize("name", PAIRS)
def test_git_applies_odd_files(name: str, tmp_path: Path) -> None:
    before, after = PAIRS[name]
    for path in ("vllm/a.py", "vllm/with space.py", 'vllm/q"uote\\ü.py'):
        assert apply(tmp_path, path, before, diffs.unified(path, before, after)) == after


def test_random_files_go_through_git(tmp_path: Path) -> None:
    rng = random.Random(20260101)
    words = [b"a\n", b"\n", b"    b\n", b"  c\r\n", b"def f():\n", b"\xff\n", b"u1\n", b"u2\n"]
    for number in range(300):
        old = [rng.choice(words) for _ in range(rng.randrange(25))]
        new = old[:]
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(3)] = rng.choices(words, k=rng.randrange(3))
        rebuilt, last = [], None
        for change in diffs.changes(old, new):
            # Two changes that touch would be one change.
            assert last is None or last.old_end < change.old_start
            rebuilt += old[last.old_end if last else 0 : change.old_start]
            assert len(rebuilt) == change.new_start
            rebuilt += new[change.new_start : change.new_end]
            last = change
        assert rebuilt + old[last.old_end if last else 0 :] == new
        if number < 40 and old != new:
            before, after = b"".join(old), b"".join(new)
            context = rng.choice([1, 3])
            assert apply(tmp_path, "f", before, diffs.unified("f", before, after, context)) == after


def test_nothing_changed_is_no_diff() -> None:
    assert diffs.unified("a.py", b"a\n", b"a\n") == b""
    assert diffs.count(b"a\n", b"a\n") == (0, 0)


def test_counts() -> None:
    assert diffs.count(b"a\nb\nc\n", b"a\nB\nc\nd\n") == (2, 1)
    assert diffs.count(None, b"a\nb") == (2, 0)
    assert diffs.count(b"a\nb", None) == (0, 2)


def test_a_hunk_names_the_function_it_is_in() -> None:
    before = b"class A:\n    async def f(self):\n" + b"".join(
        b"        x%d\n" % i for i in range(9)
    )
    text = diffs.unified("a.py", before, before.replace(b"x7", b"y7"))
    assert b"@@ -7,5 +7,5 @@ async def f(self):\n" in text


def test_hunks_join_when_their_context_meets() -> None:
    before = b"".join(b"%d\n" % i for i in range(30))
    near = before.replace(b"5\n", b"five\n", 1).replace(b"12\n", b"twelve\n")
    far = before.replace(b"5\n", b"five\n", 1).replace(b"13\n", b"thirteen\n")
    assert len(diffs.hunks(diffs.split(before), diffs.split(near))) == 1
    assert len(diffs.hunks(diffs.split(before), diffs.split(far))) == 2


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (  # a new function, not "the end of the last and the start of the next"
            b"def a():\n    return\n\n\ndef c():\n    return\n",
            b"def a():\n    return\n\n\ndef b():\n    return\n\n\ndef c():\n    return\n",
            [b"def b():\n", b"    return\n", b"\n", b"\n"],
        ),
        (  # the decorator goes with its function
            b"class C:\n    @p\n    def a(): ...\n\n    @p\n    def c(): ...\n",
            b"class C:\n    @p\n    def a(): ...\n\n    @p\n    def b(): ...\n\n"
            b"    @p\n    def c(): ...\n",
            [b"    @p\n", b"    def b(): ...\n", b"\n"],
        ),
        (  # one insertion, not two with an empty line between
            b"import a\n\n\nclass C: ...\n",
            b"import a\n\nimport b\n\n\nclass C: ...\n",
            [b"import b\n", b"\n"],
        ),
    ],
)
def test_an_insertion_starts_where_a_reader_expects(
    before: bytes, after: bytes, shown: list[bytes]
) -> None:
    for old, new, sign in ((before, after, b"+"), (after, before, b"-")):
        lines = diffs.split(diffs.unified("a.py", old, new))[5:]
        assert [line[1:] for line in lines if line.startswith(sign)] == shown


def test_a_lone_bracket_holds_no_diff_together() -> None:
    before = (
        b"def a():\n    f(x << 1)\n\n\ndef b():\n    y = (\n        z << 1\n    )\n    return y\n"
    )
    after = b"def a():\n    f(\n        x * 2\n    )\n\n\ndef b():\n    y = z * 2\n    return y\n"
    text = diffs.unified("a.py", before, after)
    assert b"\n def b():\n" in text
    assert diffs.count(before, after) == (4, 4)


def test_the_mode_is_that_of_the_file(tmp_path: Path) -> None:
    for name, mode, wanted in (
        ("plain.py", 0o644, "100644"),
        ("run.py", 0o755, "100755"),
        ("mine.py", 0o700, "100755"),
        ("theirs.py", 0o655, "100644"),
    ):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        assert diffs.file_mode(tmp_path, name) == wanted, name
    assert diffs.file_mode(tmp_path, "gone.py") == "100644"
    assert b" 100755\n" in diffs.unified("a", b"a\n", b"b\n", mode="100755")
    assert b"\nnew file mode 100755\n" in diffs.unified("a", None, b"b\n", mode="100755")
    assert b"\ndeleted file mode 100755\n" in diffs.unified("a", b"a\n", None, mode="100755")
