"""Edits that replace code and insert statements."""

from __future__ import annotations

import pytest
from engine_kit import found, made

from rewriter.edits import insert_after, insert_before, replace
from rewriter.snippet import SnippetError
from rewriter.source import SourceError


def body(text: str) -> str:
    return f"def f():\n    {text}\n"


@pytest.mark.parametrize(
    ("find", "put", "before", "after"),
    [
        ("a", "b", "return a", "return b"),
        ("a << b", "a * b", "g(a << b, c)", "g(a * b, c)"),
        ("b", "b + 1", "a * b", "a * (b + 1)"),
        ("b", "c or d", "a + b", "a + (c or d)"),
        ("b", "c or d", "g(b, b=1)", "g(c or d, b=1)"),
        ("b", "c or d", "g(k=b)", "g(k=c or d)"),
        ("b", "c or d", "b.x", "(c or d).x"),
        ("b", "c or d", "b(x)", "(c or d)(x)"),
        ("b", "c or d", "b[x]", "(c or d)[x]"),
        ("b", "c or d", "x[b]", "x[c or d]"),
        ("b", "c or d", "not b", "not (c or d)"),
        ("b", "c or d", "await b", "await (c or d)"),
        ("b", "c or d", "[*b]", "[*(c or d)]"),
        ("b", "c or d", "{**b}", "{**(c or d)}"),
        ("b", "c or d", "a == b", "a == (c or d)"),
        ("b", "c if d else e", "[x for x in b]", "[x for x in (c if d else e)]"),
        ("b", "c if d else e", "[x for x in y if b]", "[x for x in y if (c if d else e)]"),
        ("b", "c if d else e", "b if x else y", "(c if d else e) if x else y"),
        ("b", "lambda: c", "f'{b}'", "f'{(lambda: c)}'"),
        ("b", "(c := d)", "x = b", "x = (c := d)"),
        ("b", "c, d", "return b", "return (c, d)"),
        ("b", "c, d", "g(b)", "g((c, d))"),
        ("a, b", "c, d", "return a, b", "return c, d"),
        ("(a, b)", "(c, d)", "return (a, b)", "return (c, d)"),
        ("a", "b + c", "(a) * d", "(b + c) * d"),
        ("a or b", "a or b or c", "a or b or d", "a or b or c or d"),
        ("a and b", "c and d", "a and b or e", "(c and d) or e"),
        ("b", "1", "b.real", "(1).real"),
        ("[a]", "b", "return[a]", "return b"),
        ("g(x for x in y)", "g(y)", "return g(x for x in y)", "return g(y)"),
        ("g(*a, k=1)", "g(k=2)", "g(*a, k=1)", "g(k=2)"),
        ("'a'", '"b"', 'g("a")', 'g("b")'),
        ("a", "b", "g(a=a).a", "g(a=b).a"),
        ("g(...)", "h()", "g(x, y=1)", "h()"),
        ("größe", "maß", "x = 'äöü' + größe + 'ß'", "x = 'äöü' + maß + 'ß'"),
        ("a", "c['k']", 'f"{a}"', "f\"{c['k']}\""),
        ("a", "b", "x = [\n        a,  # why\n    ]", "x = [\n        b,  # why\n    ]"),
        ("g(a)", "h(a)", "if (x := g(a)): ...", "if (x := h(a)): ..."),
        ("a", "b", f"x = [{'0, ' * 500}a]", f"x = [{'0, ' * 500}b]"),
    ],
)
def test_replace_an_expression(find, put, before, after):
    assert made(body(before), replace(find, put)) == body(after)


def test_comments_between_kept_operands_stay():
    before = body("x = (\n        a\n        # why\n        or b  # so\n    )")
    after = body("x = (\n        a\n        # why\n        or b or c  # so\n    )")
    got = made(before, replace("a or b", "a or b or c"))
    assert got == after


@pytest.mark.parametrize("kind", ["match", "decorator", "default", "annotation", "nested"])
def test_an_expression_anywhere_in_a_scope(kind):
    code = {
        "match": "def f():\n    match a:\n        case X(1) if {}:\n            pass\n",
        "decorator": "@{}\ndef f(): ...\n",
        "default": "def f(x={}): ...\n",
        "annotation": "def f(x: {}): ...\n",
        "nested": "def f():\n    class A:\n        def g(self):\n            return {}\n",
    }[kind]
    assert made(code.format("g(a)"), replace("g(a)", "h")) == code.format("h")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (body("a + a"), (2, 0)),
        (body("g(a)"), (1, 0)),
        (body("b"), (0, 1)),
        (body("a + b"), (1, 1)),
        (body("c"), (0, 0)),
        ("x = a\n\ndef f():\n    pass\n", (0, 0)),
        ("import a\n\ndef f(a):\n    import a\n    g(a=1).a\n", (0, 0)),
    ],
)
def test_places_are_counted_in_the_scope_only(code, expected):
    assert found(code, replace("a", "b")) == expected


def test_what_is_found_in_its_own_result_is_done():
    assert found(body("g(g(x))"), replace("g(x)", "g(g(x))")) == (0, 1)


def test_a_result_that_is_part_of_what_is_found():
    assert made(body("a or b or c"), replace("a or b or c", "a or b")) == body("a or b")


@pytest.mark.parametrize(
    ("find", "put", "before", "after"),
    [
        ("x = 1", "x = 2", "x = 1  # why", "x = 2"),
        ("x = 1\ny = 2", "z = 3", "x = 1\n    y = 2\n    y = 2", "z = 3\n    y = 2"),
        ("x = 1\ny = 2", "x = 1", "x = 1\n    y = 2", "x = 1"),
        ("x = 1", "x = 1\ny = 2", "x = 1", "x = 1\n    y = 2"),
        ("if a: ...", "b", "if a:\n        c\n    d", "b\n    d"),
        ("if a: ...", "if b:\n    c", "if a:\n        c", "if b:\n        c"),
        ("return", "return None", "return", "return None"),
        ("@a\ndef g(): ...", "g = 1", "@a\n    def g():\n        pass", "g = 1"),
        ("x = 1", "", "x = 1\n    y", "y"),
        ("x = 1; y = 2", "z", "x = 1; y = 2", "z"),
        ("x: int = 1", "x: str = ''", "x: int = 1", "x: str = ''"),
        ("a, b = c", "a = c", "a, b = c", "a = c"),
        ("x += 1", "x += 2", "x += 1", "x += 2"),
    ],
)
def test_replace_statements(find, put, before, after):
    edit = replace(find, put)
    if not put:
        assert found(body(before), edit) == (1, 0)
        assert found(body(after), edit) == (0, 1)
        return
    assert made(body(before), edit) == body(after)


def test_comments_are_kept_or_taken_away():
    code = body("y\n\n    # one\n    # two\n    x = 1\n    # three")
    assert made(code, replace("x = 1", "z = 1")) == code.replace("x = 1", "z = 1")
    taken = made(code, replace("x = 1", "z = 1", with_comments=True))
    assert taken == body("y\n\n    z = 1\n    # three")


@pytest.mark.parametrize("code", ["def f():\n    if a: x = 1\n", "def f():\n    y; x = 1\n"])
def test_a_statement_that_shares_its_line_is_not_found(code):
    assert found(code, replace("x = 1", "x = 2")) == (0, 0)
    assert found(code, insert_after("x = 1", "y = 2")) == (0, 0)


@pytest.mark.parametrize(
    ("find", "before", "above", "below"),
    [
        ("x", "x\n    y", "NEW\n    x\n    y", "x\n    NEW\n    y"),
        ("y", "x\n    y", "x\n    NEW\n    y", "x\n    y\n    NEW"),
        ("x", "x  # why", "NEW\n    x  # why", "x  # why\n    NEW"),
        ("x", "# why\n    x", "NEW\n    # why\n    x", "# why\n    x\n    NEW"),
        ("x\ny", "x\n    y\n    z", "NEW\n    x\n    y\n    z", "x\n    y\n    NEW\n    z"),
        (
            "if a: ...\nelse: ...",
            "if a:\n        b\n    else:\n        c\n        # end\n    d",
            "NEW\n    if a:\n        b\n    else:\n        c\n        # end\n    d",
            "if a:\n        b\n    else:\n        c\n        # end\n    NEW\n    d",
        ),
        (
            "c",
            "if a:\n        b\n    else:\n        c",
            "if a:\n        b\n    else:\n        NEW\n        c",
            "if a:\n        b\n    else:\n        c\n        NEW",
        ),
        (
            "def g(): ...",
            "# why\n    def g():\n        pass",
            "NEW\n    # why\n    def g():\n        pass",
            "# why\n    def g():\n        pass\n    NEW",
        ),
        (
            "@a\ndef g(): ...",
            "# why\n    @a\n    # so\n    def g():\n        pass",
            "NEW\n    # why\n    @a\n    # so\n    def g():\n        pass",
            "# why\n    @a\n    # so\n    def g():\n        pass\n    NEW",
        ),
        (
            "y",
            "if a:\n        b\n        # end\n    y",
            "if a:\n        b\n        # end\n    NEW\n    y",
            "if a:\n        b\n        # end\n    y\n    NEW",
        ),
        (
            "x = g(\n    1\n)",
            "x = g(\n        1,\n    )\n    y",
            "NEW\n    x = g(\n        1,\n    )\n    y",
            "x = g(\n        1,\n    )\n    NEW\n    y",
        ),
        ("x", "'''Doc.'''\n    x", "'''Doc.'''\n    NEW\n    x", "'''Doc.'''\n    x\n    NEW"),
    ],
)
def test_insert(find, before, above, below):
    assert made(body(before), insert_before(find, "NEW")) == body(above)
    assert made(body(before), insert_after(find, "NEW")) == body(below)


def test_insert_several_statements_with_comments():
    edit = insert_after("x", "# why\nif a:\n    y = '''\n b'''")
    assert made(body("x"), edit) == body("x\n    # why\n    if a:\n        y = '''\n b'''")


@pytest.mark.parametrize("indent", ["\t", "  ", "        "])
def test_insert_at_any_indentation(indent):
    code = f"class A:\n{indent}def m(self):\n{indent}{indent}x\n"
    expected = f"{code}{indent}{indent}y\n"
    assert made(code, insert_after("x", "y"), "A.m") == expected


def test_insert_at_the_end_of_a_file_without_a_newline():
    assert made("def f():\n    x", insert_after("x", "y\nz")) == "def f():\n    x\n    y\n    z"
    assert made("def f():\n    x", insert_before("x", "y")) == "def f():\n    y\n    x"
    assert made("def f():\n    x", replace("x", "if y:\n    z")) == "def f():\n    if y:\n        z"


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_insert_writes_the_newlines_of_the_file(newline):
    code = newline.join(["def f():", "    # why", "    x", ""])
    lines = ["def f():", "    y", "    z", "    # why", "    x", ""]
    assert made(code, insert_before("x", "y\nz")) == newline.join(lines)


def test_insert_in_a_whole_file():
    code = "import a\n\nx = 1\n"
    assert made(code, insert_after("x = 1", "y = 2"), "") == code + "y = 2\n"


@pytest.mark.parametrize(("find", "scope"), [("x = 1", "A.x"), ("class A: ...", "A")])
def test_insert_beside_the_scope_itself(find, scope):
    with pytest.raises(SourceError, match="name the scope around it"):
        found("class A:\n    x = 1\n", insert_before(find, "y = 2"), scope)


def test_an_insertion_that_stands_beside_is_done():
    assert found(body("x\n    y"), insert_after("x", "y")) == (0, 1)
    assert found(body("y\n    x"), insert_after("x", "y")) == (1, 0)
    assert found(body("x\n    y\n    x"), insert_after("x", "y", count=2)) == (1, 1)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (replace, ("x = 1", "f(x) + 1; y = ")),
        (replace, ("a if b", "c")),
        (replace, ("a", "a")),
        (replace, ("", "x = 1")),
        (insert_after, ("a", "")),
        (insert_before, ("", "a")),
        (insert_before, ("a", "# only a comment")),
    ],
)
def test_bad_snippets_are_refused(make, arguments):
    with pytest.raises(SnippetError):
        make(*arguments)


def test_an_expression_statement_can_become_another_statement():
    assert made(body("g(a)"), replace("g(a)", "x = 1")) == body("x = 1")


def test_descriptions():
    assert replace("a << b", "a\n+ b").describe() == "replace `a << b` by `a + b`"
    assert replace("x = 1", "").describe() == "remove `x = 1`"
    assert insert_before("x", "y").describe() == "insert `y` before `x`"
