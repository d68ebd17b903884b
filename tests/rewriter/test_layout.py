"""Code laid out by the base's own settings, and nothing but edited code."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_kit import FILE, Tree, transform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewriter.edits import In, add_keyword, insert_after, replace
from rewriter.errors import RewriterError
from rewriter.layout import Layout
from rewriter.source import Source

FORMATTED = '''\
"""Doc."""

import b
import c


def f():
    return g(1)


def other(a):
    return [a]
'''
#: The formatter and the import sorter would change every one of these lines.
UGLY = "x = {  'a':1 }\nimport c,b\ny = [ 1,\n 2 ]\n"
LONG = 'g(1, "argument one", "argument two", "argument three", "argument four", "and a last one")'
SPLIT = """\
    return g(
        1,
        "argument one",
        "argument two",
        "argument three",
        "argument four",
        "and a last one",
    )
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def edit(imports: str | tuple[str, ...] = ()):
    return In(FILE, "f").do(replace("g(1)", LONG), imports=imports)


def crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def test_a_formatted_file_is_formatted_whole(tree):
    _, got = tree.one(FORMATTED, edit("import a.z"))
    expected = FORMATTED.replace("    return g(1)\n", SPLIT).replace(
        "import b", "import a.z\nimport b"
    )
    assert got.decode() == expected


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ugly", ["", UGLY])
def test_byte_order_mark_and_windows_newlines(tree, bom, ugly):
    before = FORMATTED + ugly
    _, got = tree.one(bom + crlf(before), edit())
    assert got == bom + crlf(before.replace("    return g(1)\n", SPLIT))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_in_an_unformatted_file_only_edited_lines_are_laid_out(tree, newline):
    before = (FORMATTED + UGLY).replace("\n", newline)
    expected = before.replace(f"    return g(1){newline}", SPLIT.replace("\n", newline))
    _, got = tree.one(before, edit())
    assert got.decode() == expected


def test_mixed_newlines_stay(tree):
    before = FORMATTED.encode().replace(b"import b\n", b"import b\r\n") + crlf(UGLY)
    _, got = tree.one(before, edit())
    assert got == before.replace(b"    return g(1)\n", SPLIT.encode())


def test_a_missing_last_newline_stays_missing(tree):
    before = (FORMATTED + UGLY).rstrip("\n")
    _, got = tree.one(before, edit())
    assert got.decode() == before.replace("    return g(1)\n", SPLIT)


def test_several_edits_in_an_unformatted_file(tree):
    before = UGLY + "def f():\n    g(1)\n    z = {'q':1 }\n    h(2)\n    i()\n" + UGLY
    more = In(FILE, "f").do(
        replace("g(1)", LONG),
        insert_after("i()", "if True :\n    print ( 3 )"),
        add_keyword("h(2)", k="4"),
    )
    _, got = tree.one(before, more)
    laid = SPLIT.replace("    return g(", "    g(")
    assert got.decode() == (
        UGLY
        + f"def f():\n{laid}    z = {{'q':1 }}\n    h(2, k=4)\n    i()\n"
        + "    if True:\n        print(3)\n"
        + UGLY
    )


def test_an_import_in_a_file_with_unsorted_imports_moves_no_other(tree):
    before = "import c\nimport b\n\nx = {  'a':1 }\n\ndef f():\n    return g(1)\n"
    _, got = tree.one(before, edit("import a.z"))
    expected = before.replace("import b\n", "import b\nimport a.z\n")
    assert got.decode() == expected.replace("    return g(1)\n", SPLIT)


def test_an_import_in_an_unformatted_file_with_sorted_imports_finds_its_place(tree):
    before = (
        "import b\nimport c\nfrom d import f\n\nx = {  'a':1 }\n\n\ndef f():\n    return g(1)\n"
    )
    _, got = tree.one(before, edit(("import a.z", "from d import e")))
    expected = before.replace("import b\n", "import a.z\nimport b\n").replace(
        "import f", "import e, f"
    )
    assert got.decode() == expected.replace("    return g(1)\n", SPLIT)


def test_the_settings_of_the_base_count(tree):
    tree.write({"pyproject.toml": "[tool.ruff]\nline-length = 200\n"})
    _, got = tree.one(FORMATTED, edit())
    assert got.decode() == FORMATTED.replace("g(1)", LONG)


@pytest.mark.parametrize("text", ["[tool.ruff\n", "[tool.ruff]\nno-such-setting = 1\n"])
def test_settings_that_ruff_cannot_read_are_told_in_one_line(tree, text):
    tree.write({"pyproject.toml": text})
    with pytest.raises(RewriterError, match=r"ruff cannot lay out the edited files: .*"):
        tree.one(FORMATTED, edit())


def test_faults_by_file(tmp_path):
    layout = Layout(tmp_path, tmp_path)
    finish = layout.faults(
        {
            "good": b"x = 1\n",
            "name": b"def f():\n    return y  # noqa\n",
            "syntax": b"def f(:\n",
            "compiler": b"return 1\n",
        }
    )
    faults = finish()
    assert not faults["good"]
    assert faults["name"] == {"Undefined name `y`"}
    assert faults["syntax"]
    assert faults["compiler"] == {"`return` statement outside of a function/method"}


LINES = st.lists(
    st.sampled_from(
        [
            "",
            "x=1",
            "# ü comment ",
            "y = 'é' ",
            "if x :\n\tpass",
            "\x0c",
            "z = ( 1,\n  2 )",
            "import q",
        ]
    ),
    max_size=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(LINES, LINES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_bytes_around_the_edited_scope_stay(tmp_path_factory, above, below, newline, bom, last):
    head = "".join(f"{line}\n" for line in above).replace("\n", newline)
    tail = "".join(f"{line}\n" for line in below).replace("\n", newline)
    scope = "def f():\n    a = { 'k':1 }\n    return g(1)\n".replace("\n", newline)
    data = (b"\xef\xbb\xbf" if bom else b"") + f"{head}{scope}{tail}x=2".encode()
    data += newline.encode() if last else b""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    result = tree.run({FILE: data, "vllm/b.py": data}, transform(edit()))
    assert set(result.files) == {FILE}
    old = f"    return g(1){newline}".encode()
    assert result.files[FILE] == data.replace(old, SPLIT.replace("\n", newline).encode())


def test_the_kit_reads_what_it_writes():
    assert Source(FORMATTED.encode()).scope("f").name == "f"
