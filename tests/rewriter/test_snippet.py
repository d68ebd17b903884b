"""Patterns: what matches what, and what is put where."""

from __future__ import annotations

import libcst as cst
import pytest

from rewriter.snippet import Snippet, SnippetError, walk


def matches(pattern: str, code: str, wild: bool = True) -> bool:
    node = Snippet.parse(code)
    snippet = Snippet.parse(pattern)
    if snippet.expression is not None and node.expression is not None:
        return snippet.match(node.expression, wild=wild)
    return snippet.match_run(node.statements, 0, wild=wild)


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("a+b", "a  +  b"),
        ("(a)", "a"),
        ("f(a, b)", "f(\n    a,  # why\n    b,\n)"),
        ("f(a=1, b=2)", "f(b=2, a=1)"),
        ("'x'", '"x"'),
        ("b'x'", 'b"x"'),
        ("u'x'", '"x"'),
        ("'''x'''", "'x'"),
        ("f'{a}'", 'f"{a}"'),
        ("f'{a!r:>{n}}'", 'f"{a!r:>{n}}"'),
        ("x[a, b]", "x[a,b]"),
        ("(a, b)", "a, b"),
        ("(a := b)", "(a:=b)"),
        ("lambda a: b", "lambda a :b"),
        ("größe + 1", "größe+1"),
        ("if a: b", "if a:\n    b"),
        ("if a:\n    b\n    c", "if a: b; c"),
        ("x: int = 1", "x:int=1"),
        ("match a:\n    case 1:\n        b", "match a:\n    case 1: b"),
        ("x = 1  # type: int", "x = 1"),
        ("async def f(): ...", "async def f():\n    await g()\n    h()"),
    ],
)
def test_white_space_quotes_and_order_of_keywords_do_not_matter(pattern, code):
    assert matches(pattern, code)


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("a + b", "b + a"),
        ("f(a, b)", "f(b, a)"),
        ("f(a)", "f(*a)"),
        ("f(**a)", "f(*a)"),
        ("'x'", "b'x'"),
        ("f'{a}'", "f'{a=}'"),
        ("f'{a}\\n'", "rf'{a}\\n'"),
        ("f'{a}'", "f'{a!r}'"),
        ("f(a)", "f(a, b=1)"),
        ("f(a, b=1)", "f(a)"),
        ("[a, b]", "(a, b)"),
        ("a.b", "a.c"),
        ("x: int = 1", "x = 1"),
        ("x += 1", "x -= 1"),
        ("def f(): ...", "async def f(): ..."),
        ("if a: ...", "if a:\n    b\nelse:\n    c"),
        ("a == b", "a != b"),
        ("[x for x in y]", "[x async for x in y]"),
    ],
)
def test_what_means_something_else_does_not_match(pattern, code):
    assert not matches(pattern, code)


@pytest.mark.parametrize(
    ("pattern", "code", "expected"),
    [
        ("f(...)", "f()", True),
        ("f(...)", "f(a, *b, c=1, **d)", True),
        ("f(a, ...)", "f(a)", True),
        ("f(a, ...)", "f(a, b, c=1)", True),
        ("f(a, ...)", "f(b, a)", False),
        ("f(..., a)", "f(b, c, a)", True),
        ("f(..., a)", "f(a, b)", False),
        ("f(a, ..., b)", "f(a, b)", True),
        ("f(a, ..., b)", "f(a, x, y, b, k=1)", True),
        ("f(a, ..., b)", "f(a, b, x)", False),
        ("f(..., a=1)", "f(b, c=2, a=1)", True),
        ("f(..., a=1)", "f(b, a=2)", False),
        ("f(a=...)", "f(a=[1, 2])", True),
        ("f(a=...)", "f(a=1, b=2)", False),
        ("f(*...)", "f(*a)", True),
        ("f(*...)", "f(a)", False),
        ("....a", "f(x).a", True),
        ("...(a)", "f.g(a)", True),
        ("... + b", "a * c + b", True),
        ("x[...]", "x[a]", True),
        ("x[...]", "x[a:b]", False),
        ("x[..., 0]", "x[i, 0]", True),
        ("[..., b]", "[a, b]", True),
        ("[..., b]", "[a, c, b]", False),
        ("x = ...", "x = {1: 2}", True),
        ("return ...", "return a, b", True),
        ("return ...", "return", False),
        ("for a in ...: ...", "for a in f(x):\n    a\n    b", True),
        ("with f(...): ...", "with f(a):\n    b", True),
        ("class A(B): ...", "class A(B):\n    x = 1", True),
        ("f(...)(...)", "f(a)(b)", True),
        ("a if ... else b", "a if c or d else b", True),
    ],
)
def test_the_wildcard(pattern, code, expected):
    assert matches(pattern, code) is expected


@pytest.mark.parametrize(
    ("pattern", "code", "expected"),
    [
        ("x[..., 0]", "x[i, 0]", False),
        ("x[..., 0]", "x[..., 0]", True),
        ("f(...)", "f(a)", False),
        ("def f(): ...", "def f():\n    return 1", False),
    ],
)
def test_in_code_that_is_put_the_ellipsis_is_itself(pattern, code, expected):
    assert matches(pattern, code, wild=False) is expected


def test_a_docstring_is_the_same_at_any_indentation():
    text = 'def f():\n    """One.\n\n    Two.\n    """\n'
    deeper = 'def f():\n        """One.\n\n        Two.\n        """\n'
    assert matches(text, deeper)


def test_the_value_of_a_string_keeps_its_spaces():
    assert not matches('x = """a\nb"""', 'x = """a\n  b"""')


@pytest.mark.parametrize("code", ["def", "f(", "x = ", "@x", "'unclosed", "a\x00b"])
def test_what_is_not_python_is_refused(code):
    with pytest.raises(SnippetError, match="not Python"):
        Snippet.parse(code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a\n+ b", "a + b"),
        ("f(\n    a,\n    b,\n)", "f( a, b, )"),
        ("f(\n    a,  # why\n    b,\n)", "f(a, b)"),
        ("a  # why", "a"),
        ("'#'", "'#'"),
        ("a + \\\n    b", "a + b"),
        ("f('''a\n  b''')", "f('a\\n  b')"),
    ],
)
def test_an_expression_on_one_line(code, expected):
    assert Snippet.parse(code).one_line == expected


def test_names_that_are_no_expressions_are_passed_over():
    code = "import n\nfrom n import n\ndef n(n=1):\n    global n\n    f(n=2).n\nclass n: ...\n"
    names = [node.value for node, _ in walk(cst.parse_module(code)) if isinstance(node, cst.Name)]
    assert names == ["f"]


def test_targets_and_loads_are_expressions():
    module = cst.parse_module("n = n\nfor n in n: ...\n[n for n in n]\n")
    assert sum(isinstance(node, cst.Name) for node, _ in walk(module)) == 7
