"""Edits of definitions: decorators, bases, parameters, members."""

from __future__ import annotations

import sys

import pytest
from engine_kit import found, made

from rewriter.edits import add_base, add_decorator, add_member, add_parameter, set_parameter
from rewriter.snippet import SnippetError
from rewriter.source import SourceError


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(): ...\n", "@d(1)\ndef f(): ...\n"),
        ("async def f(): ...\n", "@d(1)\nasync def f(): ...\n"),
        ("class f: ...\n", "@d(1)\nclass f: ...\n"),
        ("# why\n@a\n# so\n@b\ndef f(): ...\n", "# why\n@d(1)\n@a\n# so\n@b\ndef f(): ...\n"),
        ("\ufeffdef f(): ...\n", "\ufeff@d(1)\ndef f(): ...\n"),
        ("def f(): ...", "@d(1)\ndef f(): ..."),
        ("def f():\r\n    ...\r\n", "@d(1)\r\ndef f():\r\n    ...\r\n"),
    ],
)
def test_add_decorator(before, after):
    assert made(before, add_decorator("d(1)")) == after


def test_add_decorator_to_a_method():
    code = "class A:\n\t@a\n\tdef m(self): ...\n"
    assert made(code, add_decorator("d"), "A.m") == "class A:\n\t@d\n\t@a\n\tdef m(self): ...\n"


@pytest.mark.parametrize("scope", ["", "x"])
def test_only_a_definition_takes_a_decorator(scope):
    with pytest.raises(SourceError, match="not a definition"):
        found("x = 1\ndef f(): ...\n", add_decorator("d"), scope)


def test_a_decorator_is_given_without_its_sign():
    with pytest.raises(SnippetError):
        add_decorator("@d")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class A: ...", "class A(B.C): ..."),
        ("class A(): ...", "class A(B.C): ..."),
        ("class A(D): ...", "class A(D, B.C): ..."),
        ("class A((D)): ...", "class A((D), B.C): ..."),
        ("class A(D, metaclass=M): ...", "class A(D, B.C, metaclass=M): ..."),
        ("class A(metaclass=M): ...", "class A(B.C, metaclass=M): ..."),
        ("class A(  # why\n    D,\n): ...", "class A(  # why\n    D, B.C,\n): ..."),
        ("class A[T: (int, str)]: ...", "class A[T: (int, str)](B.C): ..."),
        ("class A[T](D): ...", "class A[T](D, B.C): ..."),
    ],
)
def test_add_base(before, after):
    if "[" in before and sys.version_info < (3, 12):
        with pytest.raises(SourceError, match="not Python"):
            found(f"{before}\n", add_base("B.C"), "A")
        return
    assert made(f"{before}\n", add_base("B.C"), "A") == f"{after}\n"


def test_a_function_has_no_base():
    with pytest.raises(SourceError, match="a function, not a class"):
        found("def f(): ...\n", add_base("B"))


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [
        ("a", "a, n: int", "a"),
        ("a, b", "a, n: int, b", "a"),
        ("a: (t), *b", "a: (t), n: int, *b", "a"),
        ("a: (t)", "a: (t), n: int", "a"),
        ("a, /, b", "a, n: int, /, b", "a"),
        ("a, *, b", "a, n: int, *, b", "a"),
        ("a, *, b", "a, *, b, n: int", "b"),
        ("a, *b, **c", "a, *b, n: int, **c", "b"),
        ("a, *b: t", "a, *b: t, n: int", "b"),
        ("\n    a,\n    b,\n", "\n    a,\nn: int,\n    b,\n", "a"),
        ("\n    a,  # why\n    b,\n", "\n    a,  # why\nn: int,\n    b,\n", "a"),
        ("\n    a,\n    b,  # why\n", "\n    a,\n    b, n: int,  # why\n", "b"),
        ("größe, b: 'ü'", "größe, n: int, b: 'ü'", "größe"),
    ],
)
def test_add_parameter(before, after, behind):
    edit = add_parameter("n: int", after=behind)
    assert made(f"def f({before}): ...\n", edit) == f"def f({after}): ...\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(b): ...\n", "no parameter `a`"),
        ("def f(a, n=2): ...\n", "a parameter `n` of another kind"),
        ("class f: ...\n", "a class, not a function"),
    ],
)
def test_a_function_that_takes_no_such_parameter(code, message):
    with pytest.raises(SourceError, match=message):
        found(code, add_parameter("n=1", after="a"))


@pytest.mark.parametrize("parameter", ["", "a, b", "*", "1", "*, a"])
def test_one_parameter_at_a_time(parameter):
    with pytest.raises(SnippetError, match="one parameter is needed"):
        add_parameter(parameter, after="a")


@pytest.mark.parametrize(
    ("before", "after", "was", "new"),
    [
        ("a, n: str = 'x'", "a, n: str | None = None", "n: str = 'x'", "n: str | None = None"),
        ("n = (1), b=2", "n = (2), b=2", "n=1", "n=2"),
        ("*, n", "*, n=1", "n", "n=1"),
        ("n: int", "m: int", "n: int", "m: int"),
        ("\n    n=1,  # why\n", "\n    n=2,  # why\n", "n=1", "n=2"),
    ],
)
def test_set_parameter(before, after, was, new):
    edit = set_parameter(new, was=was)
    got = made(f"def f({before}): ...\n", edit)
    assert got.replace("(2)", "2") == f"def f({after}): ...\n".replace("(2)", "2")


@pytest.mark.parametrize("code", ["def f(n=3): ...\n", "def f(n): ...\n", "def f(): ...\n"])
def test_a_parameter_that_was_something_else(code):
    with pytest.raises(SourceError, match="no parameter `n=1`"):
        found(code, set_parameter("n=2", was="n=1"))


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [
        ("    x = 1\n", "    x = 1\n    n = 2\n", None),
        ("    x = 1\n    y: int\n", "    x = 1\n    n = 2\n    y: int\n", "x"),
        ("    x = 1\n    y: int\n", "    x = 1\n    y: int\n    n = 2\n", "y"),
        ("    @a\n    def m(self): ...\n", "    @a\n    def m(self): ...\n    n = 2\n", "m"),
        ("\tx = 1\n", "\tx = 1\n\tn = 2\n", None),
        ("    '''Doc.'''\n", "    '''Doc.'''\n    n = 2\n", None),
        ("    x = 1", "    x = 1\n    n = 2", None),
        (
            "    def m(self):\n        x\n        # end\n",
            "    def m(self):\n        x\n        # end\n    n = 2\n",
            None,
        ),
        (
            "    @property\n    def p(self): ...\n    @p.setter\n    def p(self, v): ...\n"
            "    x = 1\n",
            "    @property\n    def p(self): ...\n    @p.setter\n    def p(self, v): ...\n"
            "    n = 2\n    x = 1\n",
            "p",
        ),
    ],
)
def test_add_member(before, after, behind):
    assert (
        made(f"class A:\n{before}", add_member("n = 2", after=behind), "A") == f"class A:\n{after}"
    )


def test_add_a_method_with_a_docstring():
    method = 'def n(self):\n    """One.\n\n    Two.\n    """\n    return 1'
    got = made("class A:\n    x = 1\n", add_member(method), "A")
    lines = [f"    {line}" if line else "" for line in method.split("\n")]
    assert got == "class A:\n    x = 1\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def A(): ...\n", "a function, not a class"),
        ("class A: ...\n", "a class on one line"),
        ("class A:\n    n = 3\n", "a member `n` that differs"),
        ("class A:\n    x = 3\n", "no member `y`"),
    ],
)
def test_a_class_that_takes_no_such_member(code, message):
    with pytest.raises(SourceError, match=message):
        found(code, add_member("n = 2", after="y"), "A")
