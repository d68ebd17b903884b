"""Edits that set or add a keyword argument, an item or a dict entry."""

from __future__ import annotations

import pytest
from engine_kit import found, made

from rewriter.change import splice
from rewriter.edits import add_entry, add_item, add_keyword, set_keyword
from rewriter.snippet import SnippetError
from rewriter.source import Source


def body(text: str) -> str:
    return f"def f():\n    {text}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("g()", "g(k=1)"),
        ("g(  )", "g(  k=1)"),
        ("g(a)", "g(a, k=1)"),
        ("g(a,)", "g(a,k=1,)"),
        ("g(*a, **b)", "g(*a, **b, k=1)"),
        ("g(x for x in y)", "g((x for x in y), k=1)"),
        ("g((x for x in y))", "g((x for x in y), k=1)"),
        ("g(x for x in y )", "g((x for x in y) , k=1)"),
        ("(g(a))", "(g(a, k=1))"),
        ("g (a).b", "g (a, k=1).b"),
        ("g(\n        a,\n    )", "g(\n        a,\n    k=1,)"),
        ("g(\n        a,  # why\n    )", "g(\n        a,  # why\n    k=1,)"),
        ("g(\n        a  # why\n    )", "g(\n        a  # why\n    , k=1)"),
        ("g(\n        # nothing\n    )", "g(\n        # nothing\n    k=1)"),
        ("return 'ü', g('é')", "return 'ü', g('é', k=1)"),
        ("@g(a)\n    def h(): ...", "@g(a, k=1)\n    def h(): ..."),
        ("x = f'{g(a)}'", "x = f'{g(a, k=1)}'"),
    ],
)
def test_add_keyword(before, after):
    assert made(body(before), add_keyword("g(...)", k="1")) == body(after)


def test_add_keyword_to_nested_calls():
    edit = add_keyword("g(...)", k="1", count=2)
    assert made(body("g(g(a))"), edit) == body("g(g(a, k=1), k=1)")


@pytest.mark.parametrize(
    ("value", "written"),
    [("a if b else c", "a if b else c"), ("a, b", "(a, b)"), ("(a := b)", "(a := b)")],
)
def test_a_value_that_needs_parentheses(value, written):
    assert made(body("g(a)"), add_keyword("g(a, ...)", k=value)) == body(f"g(a, k={written})")
    assert made(body("g(k=1)"), set_keyword("g(...)", k=value)) == body(f"g(k={written})")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("g(k=1)", (0, 1)),
        ("g(k=2)", (0, 0)),
        ("g(a)", (1, 0)),
        ("g(a); g(b)", (2, 0)),
        ("h()", (0, 0)),
    ],
)
def test_calls_that_add_keyword_counts(code, expected):
    assert found(body(code), add_keyword("g(...)", k="1")) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("g(k=1)", "g(k=h(2))"),
        ("g(a, k=1, l=1)", "g(a, k=h(2), l=1)"),
        ("g(k=(1))", "g(k=(h(2)))"),
        ("g(k = 1 , )", "g(k = h(2) , )"),
        ("g(\n        k=1,  # why\n    )", "g(\n        k=h(2),  # why\n    )"),
        ("g(**a, k=1)", "g(**a, k=h(2))"),
    ],
)
def test_set_keyword(before, after):
    assert made(body(before), set_keyword("g(...)", was="1", k="h(2)")) == body(after)


def test_set_keyword_of_any_value():
    assert made(body("g(k=[1])"), set_keyword("g(...)", k="2")) == body("g(k=2)")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("g(k=2)", (0, 1)), ("g(k=3)", (0, 0)), ("g()", (0, 0)), ("g(1)", (0, 0))],
)
def test_calls_that_set_keyword_counts(code, expected):
    assert found(body(code), set_keyword("g(...)", was="1", k="2")) == expected


def test_the_call_need_not_leave_room_for_the_keyword():
    assert made(body("g(1)"), add_keyword("g(1)", k="2")) == body("g(1, k=2)")
    assert made(body("g(1, k=1)"), set_keyword("g(1)", k="2")) == body("g(1, k=2)")
    assert found(body("g(1, l=1)"), add_keyword("g(1)", k="2")) == (0, 0)


@pytest.mark.parametrize("keywords", [{}, {"a": "1", "b": "2"}])
def test_one_keyword_at_a_time(keywords):
    with pytest.raises(SnippetError, match="one keyword argument is needed"):
        add_keyword("g()", **keywords)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[]", '["b"]'),
        ("[ ]", '[ "b"]'),
        ("['a']", "['a', \"b\"]"),
        ("['a',]", "['a',\"b\",]"),
        ("['a', *c]", "['a', *c, \"b\"]"),
        ("{'a'}", "{'a', \"b\"}"),
        ("()", '("b",)'),
        ("('a',)", "('a', \"b\")"),
        ("('a', 'c')", "('a', 'c', \"b\")"),
        ("(\n        'a',\n    )", "(\n        'a',\"b\",\n    )"),
        ("'a', 'c'", "'a', 'c', \"b\""),
        ("'a',", "'a', \"b\""),
        ("([])", '(["b"])'),
        ("[\n        'a',  # why\n    ]", "[\n        'a',  # why\n    \"b\",]"),
        ("[\n        'a'  # why\n    ]", "[\n        'a'  # why\n    , \"b\"]"),
    ],
)
def test_add_item(before, after):
    assert made(body(f"x = {before}"), add_item(to="x", value='"b"')) == body(f"x = {after}")
    code = f"x: t = {before}\n"
    assert made(code, add_item(to="x", value='"b"'), "x") == f"x: t = {after}\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = ['b']", (0, 1)),
        ("x = g([])", (0, 0)),
        ("y = []", (0, 0)),
        ("x += []", (0, 0)),
        ("x, y = [], []", (0, 0)),
        ("x = y = []", (1, 0)),
    ],
)
def test_displays_that_add_item_counts(code, expected):
    assert found(body(code), add_item(to="x", value='"b"')) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("x = []", "x = [1, 2]"),
        ("x = [0]", "x = [0, 1, 2]"),
        ("x = [0,]", "x = [0,1,2,]"),
        ("x = ()", "x = (1, 2,)"),
        ("x = (0,)", "x = (0, 1, 2)"),
        ("x = 0,", "x = 0, 1, 2"),
    ],
)
def test_two_items_share_their_commas(start, expected):
    scope = Source(f"{start}\n".encode()).scope("x")
    changes = [add_item(to="x", value=v).locate(scope).todo[0] for v in ("1", "2")]
    assert not changes[0].clashes(changes[1])
    writes = [write for change in changes for write in change.writes]
    assert splice(scope.source.data, writes).decode() == f"{expected}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [("g()", "g(a=1, b=2)"), ("g(x for x in y)", "g((x for x in y), a=1, b=2)")],
)
def test_two_keywords_share_their_commas(before, after):
    scope = Source(body(before).encode()).scope("f")
    changes = [add_keyword("g(...)", **{k: v}).locate(scope).todo[0] for k, v in ("a1", "b2")]
    assert not changes[0].clashes(changes[1])
    writes = list(dict.fromkeys(write for change in changes for write in change.writes))
    assert splice(scope.source.data, writes).decode() == body(after)


def test_one_keyword_with_two_values_clashes():
    scope = Source(body("g()").encode()).scope("f")
    one, two = (add_keyword("g()", a=value).locate(scope).todo[0] for value in "12")
    assert one.clashes(two)


ENTRY = '"b": 2'


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [
        ("{}", "{" + ENTRY + "}", None),
        ("{'a': 1}", "{'a': 1, " + ENTRY + "}", None),
        ("{'a': 1}", "{'a': 1, " + ENTRY + "}", '"a"'),
        ("{'a': 1, 'c': 3}", "{'a': 1, " + ENTRY + ", 'c': 3}", '"a"'),
        ("{'a': 1, **c}", "{'a': 1, " + ENTRY + ", **c}", '"a"'),
        ("{'a': (1), ('c'): 3}", "{'a': (1), " + ENTRY + ", ('c'): 3}", '"a"'),
        (
            "{\n    'a': 1,  # why\n    'c': 3,\n}",
            f"{{\n    'a': 1,  # why\n{ENTRY},\n    'c': 3,\n}}",
            '"a"',
        ),
        (
            "{\n    'a': 1,\n    # on c\n    'c': 3,\n}",
            f"{{\n    'a': 1,\n{ENTRY},\n    # on c\n    'c': 3,\n}}",
            '"a"',
        ),
        ("{\n    'a': 1\n    , 'c': 3}", f"{{\n    'a': 1\n    , {ENTRY}, 'c': 3}}", '"a"'),
        ("{\n    'a': 1,  # why\n}", "{\n    'a': 1,  # why\n" + ENTRY + ",}", '"a"'),
        (
            "{\r\n    'a': 1,\r\n    'c': 3}",
            f"{{\r\n    'a': 1,\r\n{ENTRY},\r\n    'c': 3}}",
            '"a"',
        ),
    ],
)
def test_add_entry(before, after, behind):
    edit = add_entry("x", key='"b"', value="2", after=behind)
    end = "\r\n" if "\r" in before else "\n"
    assert made(f"x = {before}{end}", edit, "x") == f"x = {after}{end}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = {'b': 2}", (0, 1)),
        ("x = {'b': 3}", (0, 0)),
        ("x = {'c': 3}", (0, 0)),
        ("x = dict(a=1)", (0, 0)),
    ],
)
def test_dicts_that_add_entry_counts(code, expected):
    edit = add_entry("x", key='"b"', value="2", after='"a"')
    assert found(f"{code}\n", edit, "x") == expected


def test_one_key_with_two_values_clashes():
    scope = Source(b"x = {}\n").scope("x")
    one, two = (add_entry("x", "'k'", value).locate(scope).todo[0] for value in "12")
    assert one.clashes(two)
