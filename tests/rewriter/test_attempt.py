"""Each outcome, and what the report tells a maintainer about a failed edit."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from engine_kit import FILE, Tree, outcomes, transform

from rewriter.edits import (
    Codemod,
    In,
    add_decorator,
    add_item,
    add_keyword,
    insert_after,
    replace,
    set_keyword,
)
from rewriter.outcome import Near, Problem


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def problem(tree: Tree, code: str | bytes, *edits, scope: str = "f", **more) -> Problem:
    result, _ = tree.one(code, In(FILE, scope).do(*edits, **more))
    assert result.outcome.failed
    return result.problems[0]


def test_every_failure_of_a_bump_in_one_run(tree):
    files = {
        "vllm/fits.py": "def f():\n    return 1\n",
        "vllm/moved.py": "x = 1\n",
        "vllm/elsewhere.py": "# ü\n\n\nclass A:\n    def moved_away(self):\n        return 1\n",
        "vllm/renamed.py": "def f():\n    g(a=1)\n    h(\n        new_name=1,\n    )\n",
        "vllm/merged.py": "def f():\n    return 2\n",
    }
    one_to_two = replace("return 1", "return 2")
    rewritten = tree.run(
        files,
        transform(In("vllm/fits.py", "f").do(one_to_two), id="fits"),
        transform(In("vllm/moved.py", "moved_away").do(one_to_two), id="moved"),
        transform(
            In("vllm/renamed.py", "f").do(set_keyword("h(...)", was="1", old_name="2")),
            id="renamed",
        ),
        transform(In("vllm/deleted.py", "f").do(one_to_two), id="deleted"),
        transform(In("vllm/merged.py", "f").do(one_to_two), id="merged"),
        transform(In("vllm/fits.py", "f").do(one_to_two), id="old", vllm="<0.18"),
    )
    assert outcomes(rewritten) == {
        "deleted": "target-missing",
        "fits": "applied",
        "merged": "already-upstream",
        "moved": "target-missing",
        "old": "not-applicable",
        "renamed": "drifted",
    }
    details = {result.id: result.detail for result in rewritten.results}
    assert details == {
        "deleted": "vllm/deleted.py: f: replace `return 1` by `return 2`: expected 1 match, found "
        "no such file; nearest is vllm/fits.py:1: def f():; nearest is vllm/merged.py:1: def f():; "
        "nearest is vllm/renamed.py:1: def f():",
        "fits": "1 edit in 1 file",
        "merged": "the base holds every edit already",
        "moved": "vllm/moved.py: moved_away: replace `return 1` by `return 2`: expected 1 match, "
        "found no `moved_away`; nearest is vllm/elsewhere.py:5: def moved_away(self):",
        "old": "declared for vLLM <0.18",
        "renamed": "vllm/renamed.py: f: set `old_name=2` in `h(...)`: expected 1 match, found "
        "0 matches; nearest is vllm/renamed.py:3: h( new_name=1, )",
    }
    assert list(rewritten.files) == ["vllm/fits.py"]


def test_a_failed_transform_edits_none_of_its_files(tree):
    rewritten = tree.run(
        {"vllm/a.py": "x = 1\n", "vllm/b.py": "x = 3\n"},
        transform(*(In(f"vllm/{n}.py", "x").do(replace("1", "2")) for n in "ab")),
    )
    assert outcomes(rewritten) == {"one": "drifted"}
    assert not rewritten.files


def test_all_problems_of_a_transform_are_listed(tree):
    result, _ = tree.one(
        "def f(): ...\n",
        In(FILE, "f").do(replace("a", "b"), add_keyword("g()", k="1")),
        In(FILE, "h").do(replace("a", "b")),
        In("vllm/gone.py").do(replace("a", "b")),
    )
    assert [(p.path, p.scope, p.found) for p in result.problems] == [
        (FILE, "f", "0 matches"),
        (FILE, "f", "0 matches"),
        (FILE, "h", "no `h`"),
        ("vllm/gone.py", "", "no such file"),
    ]


@pytest.mark.parametrize(
    ("code", "count", "found"),
    [
        ("a", 2, "1 match on line 2"),
        ("a; a", 1, "2 matches on lines 2, 2"),
        ("a\n    c\n    a", 1, "2 matches on lines 2, 4"),
        ("b; a; b", 3, "1 match on line 2 and 2 edited already"),
        ("b", 2, "0 matches and 1 edited already"),
    ],
)
def test_too_few_and_too_many(tree, code, count, found):
    got = problem(tree, f"def f():\n    {code}\n", replace("a", "b", count=count))
    assert (got.expected, got.found) == (f"{count} match{'es' * (count > 1)}", found)


def test_edits_already_there_beside_edits_to_make(tree):
    result, got = tree.one(
        "def f():\n    g(1)\n    h(2)\n", In(FILE, "f").do(replace("1", "3"), replace("4", "2"))
    )
    assert (result.detail, got) == (
        "1 edit in 1 file; 1 is upstream already",
        b"def f():\n    g(3)\n    h(2)\n",
    )


def test_nearest_is_inside_the_scope_and_has_its_line(tree):
    code = "# ü\ndef f():\n    x = 1\n    call(first, secnd)\ncall(first, second, 3)\n"
    got = problem(tree, code, replace("call(first, second)", "y"))
    assert got.nearest == (Near(FILE, 4, "call(first, secnd)"),)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_very_code_in_another_scope_comes_first(tree, newline):
    code = newline.join(["def f():", "    call(a, c)", "", "def g():", "    return call(a, b)", ""])
    got = problem(tree, code, replace("call(a, b)", "x"))
    assert got.nearest == (Near(FILE, 5, "call(a, b)"),)


def test_nothing_is_called_near_that_is_not(tree):
    assert problem(tree, "def f(): return\n", replace("call(first, second)", "x")).nearest == ()


@pytest.mark.parametrize(
    ("code", "edit", "expected"),
    [
        ("def f():\n    b; b; b\n", replace("a", "b", count=4), True),
        ("def f():\n    c\n\ndef g():\n    b\n", replace("a", "b"), True),
        ("def f():\n    c\n\ndef g():\n    a, b\n", replace("a", "b"), False),
        ("def f():\n    c\n", replace("a", "b"), False),
        ("def f():\n    x = 1\n", set_keyword("g(...)", x="1"), False),
        ("def f():\n    h(x=1)\n", set_keyword("g(...)", x="1"), True),
        ("def f():\n    y\n    z\n", insert_after("x", "y\nz"), True),
    ],
)
def test_whether_the_base_looks_fixed(tree, code, edit, expected):
    assert problem(tree, code, edit).looks_fixed is expected


def test_a_method_that_moved_is_looked_for_near_its_file_first(tree):
    files = {
        "vllm/a/one.py": "def run(): ...\n",
        "vllm/b/two.py": "def run(): ...\n",
        "vllm/b/one.py": "class A: ...\n\n\nclass B:\n    async def run(self): ...\n",
    }
    rewritten = tree.run(files, transform(In("vllm/b/one.py", "A.run").do(replace("a", "b"))))
    assert [(n.path, n.line) for n in rewritten.results[0].problems[0].nearest] == [
        ("vllm/b/one.py", 5),
        ("vllm/b/two.py", 1),
        ("vllm/a/one.py", 1),
    ]


def test_of_a_class_that_moved_the_class_is_looked_for(tree):
    rewritten = tree.run(
        {"vllm/a.py": "x = 1\n", "vllm/b.py": "class A:\n    def run(self): ...\n"},
        transform(In("vllm/a.py", "A.run").do(replace("a", "b"))),
    )
    assert rewritten.results[0].problems[0].nearest == (Near("vllm/b.py", 1, "class A:"),)


def test_of_a_file_that_moved_the_definition_is_looked_for_then_the_name(tree):
    files = {"vllm/new/gone.py": "y = 1\n", "vllm/b.py": "x = 1\n"}
    rewritten = tree.run(
        files,
        transform(In("vllm/gone.py", "x").do(replace("a", "b")), id="name"),
        transform(In("vllm/gone.py").do(replace("a", "b")), id="whole"),
    )
    near = [result.problems[0].nearest for result in rewritten.results]
    assert near == [
        (Near("vllm/b.py", 1, "x = 1"),),
        (Near("vllm/new/gone.py", 1, "a file of the same name"),),
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (b"def f(:\n", "a file that is not Python (invalid syntax, line 1)"),
        (b"# \xff\ndef f(): a\n", "a file that is not UTF-8 (line 1)"),
        (b"def f(): a\ndef f(): a\n", "2 definitions of `f`, on lines 1, 2"),
        (b"x = 1; f = [\n1]; y = (\n2)\n", None),
    ],
)
def test_a_file_that_cannot_be_edited(tree, code, found):
    got = problem(tree, code, replace("a", "b"))
    assert got.found == (found or got.found)
    assert "\n" not in got.describe()


@pytest.mark.parametrize("code", [b"import a, (\n", b"\xff\n"])
def test_imports_for_a_file_that_cannot_be_edited(tree, code):
    got = problem(tree, code, scope="", imports="import n")
    assert got.edit == "add `import n`"


def test_imports_for_a_file_that_is_gone(tree):
    rewritten = tree.run({}, transform(In("vllm/gone.py").do(imports="import n", drops="import m")))
    assert [(str(r.outcome), r.problems[0].edit) for r in rewritten.results] == [
        ("target-missing", "add `import n`, drop `import m`")
    ]


def test_only_imports(tree):
    result, got = tree.one(
        "import os\nimport sys\n", In(FILE).do(imports="import re", drops="import sys")
    )
    assert (result.detail, got) == ("imports in 1 file", b"import os\nimport re\n")


def test_an_edit_that_is_there_may_lack_its_import(tree):
    result, got = tree.one("x = 2\n", In(FILE, "x").do(replace("1", "2"), imports="import re"))
    assert (str(result.outcome), got) == ("applied", b"import re\n\nx = 2\n")


@pytest.mark.parametrize("code", ["def f():\n    g(g(1))\n", "def f():\n    g(1, g(2))\n"])
def test_places_inside_each_other_are_a_problem(tree, code):
    got = problem(tree, code, replace("g(...)", "h", count=2))
    assert got.found == "2 matches on lines 2, 2, over another of its edits"


def test_two_edits_of_one_transform_over_each_other(tree):
    targets = In(FILE, "f").do(replace("g(1)", "h(1)")), In(FILE, "f").do(replace("1", "2"))
    result, _ = tree.one("def f():\n    g(1)\n", *targets)
    assert result.problems[0].found == "1 match on line 2, over another of its edits"


def test_wrong_kind_of_scope(tree):
    assert problem(tree, "f = 1\n", add_decorator("d")).found == "an assignment, not a definition"


@pytest.mark.parametrize("fixed_by", ["new(...)", "a = 1\nb = 2"])
def test_a_fix_of_upstreams_own(tree, fixed_by):
    code = "def f():\n    a = 1\n    b = 2\n    new(a, b)\n"
    result, _ = tree.one(code, In(FILE, "f").do(replace("old()", "x"), fixed_by=fixed_by))
    assert str(result.outcome) == "already-upstream"


def test_a_fix_elsewhere_is_none(tree):
    code = "def f(): ...\n\ndef g():\n    new()\n"
    assert problem(tree, code, replace("old()", "x"), fixed_by="new()").found == "0 matches"


class Ends(cst.CSTTransformer):
    """Ends the program."""

    def visit_Name(self, node):
        raise SystemExit("enough")


def test_a_codemod_that_ends_the_program_is_a_problem_like_any_other(tree):
    done = tree.run(
        {FILE: "def f():\n    return 1\n", "vllm/b.py": "def f():\n    return 1\n"},
        transform(In(FILE, "f").do(Codemod(Ends, "do something odd")), id="ends"),
        transform(In("vllm/b.py", "f").do(replace("1", "2")), id="goes_on"),
    )
    assert outcomes(done) == {"ends": "drifted", "goes_on": "applied"}
    (found,) = done.results[0].problems
    assert found.found == "a codemod that fails with SystemExit: enough"


def test_a_list_that_is_no_display(tree):
    got = problem(tree, "x = list(y)\n", add_item(to="x", value="1"), scope="x")
    assert (got.found, got.nearest) == ("0 matches", (Near(FILE, 1, "x = list(y)"),))
