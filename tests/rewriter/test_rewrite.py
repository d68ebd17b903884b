"""Several transforms together: order, conflicts, generations, and what the engine turns down."""

from __future__ import annotations

import random
from pathlib import Path

import libcst as cst
import pytest
from engine_kit import FILE, Tree, outcomes, transform

from rewriter.edits import (
    Codemod,
    In,
    add_base,
    add_decorator,
    add_entry,
    add_item,
    add_keyword,
    add_member,
    add_parameter,
    insert_after,
    insert_before,
    replace,
    set_keyword,
)
from rewriter.errors import RewriterError
from rewriter.transform import Transform


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def f(*edits, id: str, scope: str = "f", after: tuple[str, ...] = (), **more) -> Transform:
    """A transform of one scope."""
    return transform(In(FILE, scope).do(*edits, **more), id=id, after=after)


def text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode()


# -- order ---------------------------------------------------------------------------------------


NAMES = "a = b = d = g = h = w = x = y = z = print\n\n\n"
MANY = [
    f(insert_after("g()", "h(1)"), id="after", imports="from m import a"),
    f(replace("x = [1]", "x = [1]\ny = 2"), id="statement", after=("item",)),
    f(add_item(to="x", value="1"), id="item"),
    f(add_decorator("d"), id="decorator", after=("statement",), imports="import d"),
]
CODE = f"import os\n\nfrom m import m\n\n{NAMES}def f():\n    g()\n    x = []\n"
EXPECTED = f"""\
import os

import d
from m import a, m

{NAMES}@d
def f():
    g()
    h(1)
    x = [1]
    y = 2
"""


@pytest.mark.parametrize("seed", range(4))
def test_any_order_gives_the_same(tree, seed):
    shuffled = list(MANY)
    random.Random(seed).shuffle(shuffled)
    rewritten = tree.run({FILE: CODE}, *shuffled)
    assert set(outcomes(rewritten).values()) == {"applied"}
    assert text(rewritten.files[FILE]) == EXPECTED
    assert [i for i, _ in rewritten.series] == ["after", "item", "statement", "decorator"]


def test_a_second_run_changes_nothing(tree):
    first = tree.run({FILE: CODE}, *MANY)
    again = tree.run(dict(first.files), *MANY)
    assert set(outcomes(again).values()) == {"already-upstream"}
    assert (again.files, again.alone, again.series) == ({}, {}, ())


def test_keywords_and_items_commute(tree):
    rewritten = tree.run(
        {FILE: "x = []\ny = {}\nz = g()\n"},
        f(add_item(to="x", value='"a"'), id="a", scope="x"),
        f(add_item(to="x", value='"b"'), id="b", scope="x"),
        f(add_entry("y", '"a"', "1"), id="c", scope="y"),
        f(add_entry("y", '"b"', "2"), id="d", scope="y"),
        f(add_keyword("g(...)", a="1"), id="e", scope="z"),
        f(add_keyword("g(...)", b="2"), id="f", scope="z"),
    )
    assert set(outcomes(rewritten).values()) == {"applied"}
    expected = 'x = ["a", "b"]\ny = {"a": 1, "b": 2}\nz = g(a=1, b=2)\n'
    assert text(rewritten.files[FILE]) == expected
    assert text(rewritten.alone["b"][FILE]) == 'x = ["b"]\ny = {}\nz = g()\n'


def test_the_very_same_insertion_is_made_once(tree):
    rewritten = tree.run(
        {FILE: "def f():\n    x\n"},
        f(insert_after("x", "print()"), id="a", imports="import re"),
        f(insert_after("x", "print()"), id="b", imports="import re"),
    )
    assert text(rewritten.files[FILE]) == "import re\n\n\ndef f():\n    x\n    print()\n"
    assert rewritten.alone["a"] == rewritten.alone["b"]
    assert [files for _, files in rewritten.series] == [rewritten.files] * 2


# -- conflicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (replace("g(1)", "h(1)"), replace("g(1)", "i(1)")),
        (replace("g(1)", "h(1)"), replace("1", "2")),
        (replace("g(1)", "h(1)"), add_keyword("g(...)", k="1")),
        (replace("g(1)", "h(1)"), replace("return g(1)", "return None")),
        (insert_before("return g(1)", "x"), insert_before("return g(1)", "y")),
        (insert_after("if a: ...", "x"), insert_before("return g(1)", "y")),
        (add_keyword("g(...)", k="1"), add_keyword("g(...)", k="2")),
        (add_decorator("a"), add_decorator("b")),
        (add_parameter("m", after="a"), add_parameter("n", after="a")),
        (replace("g(1)", "h(1)"), replace("g(1)", "h(1)")),
        (insert_after("return g(1)", "a"), replace("return g(1)", "return a")),
    ],
)
def test_two_that_edit_the_same_code(tree, one, two):
    code = "def f(a):\n    if a:\n        return\n    return g(1)\n"
    rewritten = tree.run({FILE: code}, f(one, id="a"), f(two, id="b"))
    assert outcomes(rewritten) == {"a": "conflict", "b": "conflict"}
    assert not rewritten.files
    problems = [result.problems[0] for result in rewritten.results]
    assert [p.found.partition(" ")[0] for p in problems] == ["b", "a"]
    assert all(p.found.endswith("name one in the other's `after`, or join them") for p in problems)


def test_a_conflict_names_the_line_and_leaves_others_alone(tree):
    rewritten = tree.run(
        {FILE: "# ü\ndef f():\n    g(1)\n    h(2)\n"},
        f(replace("g(1)", "g(2)"), id="a"),
        f(replace("1", "3"), id="b"),
        f(replace("h(2)", "h(3)"), id="c"),
    )
    assert outcomes(rewritten) == {"a": "conflict", "b": "conflict", "c": "applied"}
    assert rewritten.results[0].detail == (
        "vllm/a.py: edit line 3: expected code that no other transform edits, found b editing the "
        "same code; name one in the other's `after`, or join them"
    )
    assert text(rewritten.files[FILE]) == "# ü\ndef f():\n    g(1)\n    h(3)\n"


@pytest.mark.parametrize(
    ("one", "two", "before", "after"),
    [
        (replace("1", "3"), replace("2", "4"), "    g(1, 5, 2)\n", "    g(3, 5, 4)\n"),
        (insert_after("x", "a()"), insert_after("y", "b()"), "    x\n    y\n", None),
        (add_base("object"), add_member("x = 1"), "    y = 1\n", "    y = 1\n    x = 1\n"),
    ],
)
def test_two_edits_of_one_scope_are_no_conflict(tree, one, two, before, after):
    after = after or "    x\n    a()\n    y\n    b()\n"
    bases = "(object)" if "y = 1" in before else ""
    rewritten = tree.run(
        {FILE: f"{NAMES}class A:\n{before}"},
        f(one, id="a", scope="A"),
        f(two, id="b", scope="A"),
    )
    assert set(outcomes(rewritten).values()) == {"applied"}
    assert text(rewritten.files[FILE]) == f"{NAMES}class A{bases}:\n{after}"


# -- generations ---------------------------------------------------------------------------------


START = {FILE: f"{NAMES}def f():\n    x(0)\n"}


def test_editing_a_result_away_is_a_conflict_even_in_order(tree):
    rewritten = tree.run(
        START,
        f(replace("x(0)", "x(1)"), id="a"),
        f(replace("x(1)", "x(2)"), id="b", after=("a",)),
    )
    assert outcomes(rewritten) == {"a": "conflict", "b": "conflict"}
    assert rewritten.results[0].problems[0].found == (
        "b editing the same code, so that the first cannot be recognized; join them"
    )


def test_a_prerequisite_in_another_place(tree):
    transforms = [
        f(insert_after("x(0)", "y(0)"), id="a", imports="import re"),
        f(insert_after("y(0)", "z(0)"), id="b", after=("a",), imports="import sys"),
        f(insert_after("z(0)", "w(0)"), id="c", after=("b",)),
    ]
    rewritten = tree.run(START, *transforms)
    calls = "    x(0)\n    y(0)\n    z(0)\n    w(0)\n"
    assert set(outcomes(rewritten).values()) == {"applied"}, rewritten.results
    assert text(rewritten.files[FILE]) == f"import re\nimport sys\n\n{NAMES}def f():\n{calls}"
    assert rewritten.alone["c"] == rewritten.files
    assert text(rewritten.alone["a"][FILE]) == f"import re\n\n{NAMES}def f():\n    x(0)\n    y(0)\n"
    assert [i for i, _ in rewritten.series] == ["a", "b", "c"]
    assert rewritten.series[2][1] == rewritten.files
    assert [(r.files[0].added, r.files[0].removed) for r in rewritten.results] == [
        (3, 0),
        (2, 0),
        (1, 0),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([f(replace("nothing", "y(0)"), id="a")], "a, which is drifted"),
        ([], "a, which is not selected"),
    ],
)
def test_a_prerequisite_that_is_not_there(tree, given, words):
    late = f(insert_after("y(0)", "z(0)"), id="b", after=("a",))
    rewritten = tree.run(START, *given, late)
    assert str(rewritten.results[-1].outcome) == "drifted"
    assert rewritten.results[-1].problems[0].found == f"0 matches (it comes after {words})"


def test_a_prerequisite_that_is_not_needed_may_be_missing(tree):
    rewritten = tree.run(START, f(replace("x(0)", "x(1)"), id="b", after=("a",)))
    assert outcomes(rewritten) == {"b": "applied"}


def test_a_prerequisite_that_is_turned_down_late(tree):
    rewritten = tree.run(
        START,
        f(insert_after("x(0)", "y(undefined_name)"), id="a"),
        f(insert_after("y(undefined_name)", "z(0)"), id="b", after=("a",)),
        f(replace("0", "1"), id="c"),
    )
    assert outcomes(rewritten) == {"a": "drifted", "b": "drifted", "c": "applied"}, (
        rewritten.results
    )
    assert "(it comes after a, which is drifted)" in rewritten.results[1].detail
    assert text(rewritten.files[FILE]) == f"{NAMES}def f():\n    x(1)\n"


def test_a_circle(tree):
    with pytest.raises(RewriterError, match="transforms come after each other: a -> b -> a"):
        tree.run(
            START,
            f(replace("0", "1"), id="a", after=("b",)),
            f(replace("1", "2"), id="b", after=("a",)),
        )


def test_a_late_transform_with_files_of_its_own(tree):
    rewritten = tree.run(
        {**START, "vllm/b.py": "x = 1\n"},
        f(insert_after("x(0)", "y(0)"), id="a"),
        transform(
            In(FILE, "f").do(insert_after("y(0)", "z(0)")),
            In("vllm/b.py", "x").do(replace("1", "2")),
            id="b",
            after=("a",),
        ),
    )
    assert text(rewritten.files["vllm/b.py"]) == "x = 2\n"
    assert text(rewritten.files[FILE]) == f"{NAMES}def f():\n    x(0)\n    y(0)\n    z(0)\n"


@pytest.mark.parametrize(
    "edit", [replace("x(0)", "w(0)"), replace("0", "1"), add_keyword("x(...)", k="1")]
)
def test_order_must_be_declared_to_those_that_are_met(tree, edit):
    """b comes late because of a, which does not let it edit what c edits."""
    rewritten = tree.run(
        {FILE: f"{NAMES}def f():\n    x(0)\n    y\n"},
        f(replace("y", "z"), id="a"),
        f(replace("x(0)", "x(2)"), id="b", after=("a",)),
        f(edit, id="c"),
    )
    assert outcomes(rewritten) == {"a": "applied", "b": "conflict", "c": "conflict"}
    assert text(rewritten.files[FILE]) == f"{NAMES}def f():\n    x(0)\n    z\n"


# -- imports -------------------------------------------------------------------------------------


def test_an_import_that_one_drops_and_another_adds_stays(tree):
    rewritten = tree.run(
        {FILE: "import re\n\n\ndef f():\n    x(0)\n    y(1)\n"},
        f(replace("x(0)", "x(2)"), id="a", drops="import re"),
        f(replace("y(1)", "y(re)"), id="b", imports="import re"),
    )
    assert outcomes(rewritten) == {"a": "applied", "b": "applied"}
    assert text(rewritten.files[FILE]) == "import re\n\n\ndef f():\n    x(2)\n    y(re)\n"
    assert text(rewritten.alone["a"][FILE]) == "def f():\n    x(2)\n    y(1)\n"


def test_an_import_that_is_used_is_not_dropped(tree):
    code = "import re\n\n\ndef f():\n    x(0)\n    y(re)\n"
    rewritten = tree.run({FILE: code}, f(replace("0", "1"), id="a", drops="import re"))
    assert rewritten.results[0].problems[0].found == "Undefined name `re`"


def test_two_that_are_right_alone_but_not_together(tree):
    rewritten = tree.run(
        {FILE: "import re\n\n\ndef f():\n    x(re)\n    y(1)\n    z(2)\n"},
        f(replace("x(re)", "x(0)"), id="a", drops="import re"),
        f(replace("y(1)", "y(re)"), id="b"),
        f(replace("2", "3"), id="c"),
    )
    assert outcomes(rewritten) == {"a": "conflict", "b": "conflict", "c": "applied"}


# -- what is turned down -------------------------------------------------------------------------


class Broken(cst.CSTTransformer):
    edits = 2

    def leave_Integer(self, original_node, updated_node):
        return cst.Name("del")


@pytest.mark.parametrize(
    "edit",
    [
        Codemod(Broken, "break it", 2),
        insert_after("x(0)", "await y"),
        insert_after("x(0)", "break"),
        replace("x(0)\nx(k=0)", ""),
        set_keyword("x()", k="undefined_name"),
    ],
)
def test_a_result_that_does_not_compile(tree, edit):
    code = "def f():\n    x(0)\n    x(k=0)\n"
    rewritten = tree.run(
        {FILE: code + "\n\ny = 1\nz = 1\n"},
        f(edit, id="a"),
        f(replace("1", "2"), id="b", scope="z"),
    )
    got = rewritten.results[0]
    assert (str(got.outcome), got.problems[0].expected) == (
        "drifted",
        "a file that compiles, all names defined",
    )
    assert outcomes(rewritten)["b"] == "applied"
    assert text(rewritten.files[FILE]) == code + "\n\ny = 1\nz = 2\n"


def test_a_fault_of_the_base_is_not_the_edits(tree):
    result, _ = tree.one(
        "def f():\n    x(missing)\n    return 1\n", In(FILE, "f").do(replace("1", "2"))
    )
    assert str(result.outcome) == "applied"


def test_an_edit_that_does_not_know_itself(tree):
    rewritten = tree.run(
        START,
        transform(In(FILE, "f").do(insert_after("x(0)", "y()"), replace("0", "1")), id="a"),
        f(replace("x", "w"), id="b"),
    )
    assert outcomes(rewritten) == {"a": "drifted", "b": "applied"}
    assert rewritten.results[0].problems[0].expected == "an edit that knows itself when made"


def test_files_that_no_transform_edits_are_not_listed(tree):
    rewritten = tree.run(
        {FILE: "x = 1\n", "vllm/b.py": "x = 1\r\n", "vllm/c.py": "x = 2"},
        *(transform(In(f"vllm/{n}.py", "x").do(replace("1", "2")), id=n) for n in "abc"),
    )
    assert outcomes(rewritten) == {"a": "applied", "b": "applied", "c": "already-upstream"}
    assert rewritten.files == {FILE: b"x = 2\n", "vllm/b.py": b"x = 2\r\n"}


def test_nothing_to_do(tree):
    rewritten = tree.run({FILE: "x = 1\n"})
    assert (rewritten.results, rewritten.files, rewritten.series) == ((), {}, ())


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("", "a file that is not Python (invalid syntax, line 5)"),
        ("import os\n\n\n", "syntax error: "),
    ],
)
def test_a_base_file_that_does_not_parse_elsewhere(tree, start, found):
    """Only the statement at hand may be parsed, but nothing is let out that does not compile."""
    code = start + "def f():\n    return 1\n\n\ndef g(:\n    pass\n"
    result, data = tree.one(code, In(FILE, "f").do(replace("1", "2")))
    assert str(result.outcome) == "drifted"
    assert result.problems[0].found.startswith(found)
    assert data == code.encode()
