"""Transforms are found by walking; a bad one is one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rewriter.transforms
from rewriter.catalog import generations, load, rule_lines, select
from rewriter.errors import RewriterError

GOOD = '''\
"""Change something.

Something is wrong.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

TRANSFORM = Transform(
    seed="worker/1",
    tag="Misc",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("a test"),
    remove_when="never",
    edits=[In("vllm/a.py", "f").do(replace("a", "b"))],
)
'''


def folder(tmp_path: Path, **files: str | bytes) -> Path:
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / f"{name}.py").write_bytes(data)
    return tmp_path


def error(path: Path) -> str:
    with pytest.raises(RewriterError) as caught:
        load([path])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ours_are_the_files_of_the_package():
    here = Path(rewriter.transforms.__file__).parent
    names = sorted(path.stem for path in here.glob("*.py") if path.stem != "__init__")
    assert [t.id for t in load()] == names


def test_a_users_transform_is_one_more(tmp_path):
    found = {t.id: t for t in load([folder(tmp_path, mine=GOOD, _helper="not python (")])}
    assert len(found) == len(load()) + 1
    mine = found["mine"]
    assert (mine.title, mine.body) == ("Change something", "Something is wrong.")
    assert (mine.source, mine.source_lines) == (tmp_path / "mine.py", 10)


def test_nothing_is_written_into_the_users_folder(tmp_path):
    load([folder(tmp_path, mine=GOOD)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:\n", "cannot load mine.py: SyntaxError: invalid syntax (mine.py, line 1)"),
        (b"x = '\xff'\n", "cannot load mine.py: SyntaxError: (unicode error) "),
        ("import nothing_of_that_name\n", "cannot load mine.py: ModuleNotFoundError: No module "),
        ("raise KeyError('a\\nb')\n", "cannot load mine.py: KeyError: 'a\\nb'"),
        ("raise SystemExit(3)\n", "cannot load mine.py: SystemExit: 3"),
        ("1 / 0\n", "cannot load mine.py: ZeroDivisionError: division by zero"),
        ("TRANSFORM = 1\n", "mine.py defines no TRANSFORM; see CONTRIBUTING.md"),
        ("", "mine.py defines no TRANSFORM; see CONTRIBUTING.md"),
        (GOOD.replace('"a", "b"', '"a (", "b"'), "cannot load mine.py: SnippetError: not Python"),
        (GOOD.replace('replace("a", "b")', "1"), "cannot load mine.py: SnippetError: vllm/a.py: 1"),
        (
            GOOD.replace('"b")', '"b", count="1")'),
            "cannot load mine.py: SnippetError: count must be a whole number from 1 on, not '1'",
        ),
        (
            GOOD.replace("vllm/a.py", "vllm/_version.py"),
            "transform mine: vllm/_version.py is made anew for the wheel",
        ),
        ("__doc__ = 3\n" + GOOD[GOOD.index("from") :], "transform mine: the docstring is 3, not"),
        (GOOD.replace("edits=[", "edit=["), "cannot load mine.py: TypeError: "),
        (GOOD.replace("worker/1", "row 1"), "transform mine: seed 'row 1' is not like"),
    ],
)
def test_a_file_that_is_no_transform(tmp_path, code, message):
    assert error(folder(tmp_path, mine=code)).startswith(message)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + GOOD.encode(),
        b"\xef\xbb\xbf# coding: utf-8\n" + GOOD.encode(),
        b"# coding: latin-1\n" + GOOD.replace("wrong", "wr\xf6ng").encode("latin-1"),
        b"# coding: cp1252\r\n" + GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n\nfrom", "\n\n# \x0c \u2028\nfrom", 1).encode(),
    ],
    ids=["bom", "bom and declaration", "latin-1", "crlf", "odd separators"],
)
def test_files_are_read_as_python_reads_them(tmp_path, data):
    found = {t.id: t for t in load([folder(tmp_path, mine=data)])}
    assert found["mine"].title == "Change something"
    assert found["mine"].source_lines == 10 + data.count(b"# ")  # a comment is a line


def test_what_a_file_prints_does_not_go_to_stdout(tmp_path, capsys):
    load([folder(tmp_path, mine=GOOD + "print('hello')\n")])
    got = capsys.readouterr()
    assert (got.out, got.err) == ("", "hello\n")


def test_ctrl_c_in_a_file_is_no_fault_of_it(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        load([folder(tmp_path, mine="raise KeyboardInterrupt\n")])


def test_the_source_is_named_as_it_was_given(tmp_path, monkeypatch):
    folder(tmp_path, mine=GOOD)
    monkeypatch.chdir(tmp_path.parent)
    found = {t.id: t for t in load([Path(tmp_path.name)])}
    assert found["mine"].source == Path(tmp_path.name, "mine.py")


@pytest.mark.parametrize("optimize", ["1", "2"])
def test_python_without_docstrings(optimize):
    code = """\
from rewriter.catalog import load
from rewriter.errors import RewriterError
try:
    print(len(load()))
except RewriterError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONOPTIMIZE": optimize, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=Path(rewriter.transforms.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    if optimize == "1":
        assert done.stdout == f"{len(load())}\n"
    else:
        assert done.stdout.startswith("Python's -OO takes away the docstrings")
        assert done.stdout.count("\n") == 1


def test_an_id_used_twice(tmp_path):
    taken = load()[0].id
    assert error(folder(tmp_path, **{taken: GOOD})) == (
        f"two transforms are named {taken}; rename one of the files"
    )


def test_an_id_that_is_no_name(tmp_path):
    assert "lower case letters" in error(folder(tmp_path, **{"my-Own": GOOD}))


@pytest.mark.parametrize(
    ("name", "words"), [("gone", "no such folder"), ("", "no transform (*.py)")]
)
def test_a_folder_without_transforms(tmp_path, name, words):
    assert words in error(tmp_path / name)


def later(name: str) -> str:
    return GOOD.replace("edits=[", f'after=["{name}"],\n    edits=[')


def test_after_must_name_a_transform(tmp_path):
    got = error(folder(tmp_path, mine=later("missing")))
    assert got == "transform mine: after names 'missing', which is none"


def test_transforms_after_each_other(tmp_path):
    got = error(folder(tmp_path, a=later("b"), b=later("c"), c=later("a")))
    assert got == "transforms come after each other: a -> b -> c -> a"


def test_generations(tmp_path):
    found = load([folder(tmp_path, a=later("b"), b=later("c"), c=GOOD)])
    mine = [t for t in found if t.id in "abc"]
    assert generations(mine) == {"a": 2, "b": 1, "c": 0}
    assert generations(mine[:1]) == {"a": 0}


def test_select(tmp_path):
    found = [t for t in load([folder(tmp_path, a=GOOD, b=GOOD)]) if t.id in "ab"]
    assert [t.id for t in select(found, [], [])] == ["a", "b"]
    assert [t.id for t in select(found, ["b"], [])] == ["b"]
    assert [t.id for t in select(found, [], ["b"])] == ["a"]


@pytest.mark.parametrize(
    ("only", "skip", "message"),
    [
        (["c"], [], "--only c: no such transform; --list shows all of them"),
        ([], ["c"], "--skip c: no such transform; --list shows all of them"),
        (["a"], ["a"], "--only and --skip both name a"),
    ],
)
def test_select_what_is_not_there(tmp_path, only, skip, message):
    found = [t for t in load([folder(tmp_path, a=GOOD)]) if t.id == "a"]
    with pytest.raises(RewriterError) as caught:
        select(found, only, skip)
    assert str(caught.value) == message


def test_lines_of_a_rule_leave_out_docstring_examples_and_empty_lines():
    assert rule_lines(GOOD) == 10
    with_example = GOOD.replace(
        "    edits", '    examples=[\n        Example("a", "b", None)\n    ],\n    edits'
    )
    assert rule_lines(with_example) == 10
