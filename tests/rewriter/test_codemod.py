"""Edits that are transformers of the transform's own."""

from __future__ import annotations

import sys
from typing import ClassVar

import libcst as cst
import pytest
from engine_kit import found, made

from rewriter.edits import Codemod
from rewriter.snippet import SnippetError
from rewriter.source import Source, SourceError


class Rename(cst.CSTTransformer):
    """Renames `a` to `b` wherever it stands."""

    def __init__(self) -> None:
        self.edits = self.done = 0

    def leave_Name(self, original_node, updated_node):
        self.done += updated_node.value == "b"
        if updated_node.value != "a":
            return updated_node
        self.edits += 1
        return updated_node.with_changes(value="b")


class Split(cst.CSTTransformer):
    """Puts a new line above each `a`."""

    def __init__(self) -> None:
        self.edits = 0

    def leave_SimpleStatementLine(self, original_node, updated_node):
        if (
            updated_node.body[0]
            .with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            .deep_equals(cst.parse_statement("a").body[0])
        ):
            self.edits += 1
            return cst.FlattenSentinel([cst.parse_statement("new"), updated_node])
        return updated_node


class Ifs(cst.CSTTransformer):
    """Counts what it should not see."""

    seen: ClassVar[list[str]] = []

    def visit_If(self, node):
        self.seen.append(cst.Module([]).code_for_node(node.test))


def rename(count: int = 1) -> Codemod:
    return Codemod(Rename, "rename a", count)


def test_only_the_scope_is_visited():
    code = "a = 1\n\ndef f():\n    return a  # why\n"
    assert made(code, rename()) == "a = 1\n\ndef f():\n    return b  # why\n"


def test_an_indented_scope():
    code = "class A:\n  def f(self):\n    return 'ü', a\n  x = a\n"
    assert made(code, rename(), "A.f") == code.replace("'ü', a", "'ü', b")


def test_places_are_counted_not_lines():
    assert found("def f():\n    return a + a, a\n", rename()) == (3, 0)
    assert made("def f():\n    return a + a, a\n", rename(3)) == "def f():\n    return b + b, b\n"


def test_edited_and_done_places_are_told_apart():
    assert found("def f():\n    return a, b\n", rename()) == (1, 1)


def test_lines_between_two_edits_are_not_claimed():
    scope = Source(b"def f():\n    a\n    x\n    a\n").scope("f")
    changes = rename(2).locate(scope).todo
    assert [(c.start, c.end) for c in changes] == [(9, 15), (21, 27)]


def test_new_lines_end_as_those_of_the_file():
    code = "class A:\r\n    def f(self):\r\n        a\r\n"
    edit = Codemod(Split, "split")
    changes = edit.locate(Source(code.encode()).scope("A.f")).todo
    assert changes[0].writes[0].text == b"        new\r\n"


def test_code_that_libcst_would_change_by_itself():
    with pytest.raises(SourceError, match="does not give back"):
        found("class A:\r    def f(self):\r        a\r", rename(), "A.f")


def test_the_shell_of_an_indented_scope_is_not_visited():
    Ifs.seen.clear()
    found("class A:\n    def f(self):\n        if x: ...\n", Codemod(Ifs, "look"), "A.f")
    assert Ifs.seen == ["x"]


def failing(action) -> type[cst.CSTTransformer]:
    class Failing(cst.CSTTransformer):
        def visit_Name(self, node):
            action()

    return Failing


def boom():
    raise KeyError("x\ny")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (boom, r"a codemod that fails with KeyError: 'x\\ny'"),
        (lambda: [][0], "a codemod that fails with IndexError: list index out of range"),
        (
            lambda: cst.ensure_type(cst.Name("a"), cst.Call),
            "a codemod that fails with ValueError: Expected a Call",
        ),
        (lambda: sys.exit("no"), "a codemod that fails with SystemExit: no"),
        (lambda: sys.exit(), "a codemod that fails with SystemExit$"),
    ],
)
def test_an_exception_is_a_problem_of_the_edit(action, message):
    with pytest.raises(SourceError, match=message):
        found("def f(): a\n", Codemod(failing(action), "fail"))


def interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_is_no_problem_of_the_edit():
    with pytest.raises(KeyboardInterrupt):
        found("def f(): a\n", Codemod(failing(interrupt), "fail"))


def test_what_a_codemod_prints_does_not_go_to_stdout(capsys):
    with pytest.raises(SourceError):
        found("def f(): a\n", Codemod(failing(lambda: [print("hello"), 1 / 0]), "print"))
    got = capsys.readouterr()
    assert (got.out, got.err) == ("", "hello\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (Rename(), "an object"),
        (int, "another class"),
        (lambda: Rename(), "a function"),
        (Rename, 3),
        (Rename, "writes", 1, 3),
    ],
)
def test_arguments_of_the_wrong_kind(arguments):
    with pytest.raises(SnippetError, match="Codemod takes"):
        Codemod(*arguments)


class Forgets(Rename):
    def leave_Name(self, original_node, updated_node):
        self.edits = 0
        return updated_node.with_changes(value="b")


def test_a_codemod_must_count_what_it_changes():
    with pytest.raises(SourceError, match="counts 0 edits and changes 1 places"):
        found("def f(): a\n", Codemod(Forgets, "forget"))
