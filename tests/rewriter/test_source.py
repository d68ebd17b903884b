"""Files as bytes, and the scopes in them."""

from __future__ import annotations

import libcst as cst
import pytest
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from rewriter.source import ScopeMissing, Source, SourceError


def scope_text(code: str | bytes, name: str) -> str:
    data = code if isinstance(code, bytes) else code.encode()
    scope = Source(data).scope(name)
    return data[scope.start : scope.end].decode()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("X", "X = 1\n"),
        ("Y", "Y: int = 2\n"),
        ("f", "@a\n@b(\n    1\n)\ndef f():\n    def g():\n        return 1\n"),
        ("f.g", "    def g():\n        return 1\n"),
        ("A", "class A:\n\tx = 1\n\tasync def m(self): ...\n\tclass B:\n\t\tdef m(self): ...\n"),
        ("A.x", "\tx = 1\n"),
        ("A.m", "\tasync def m(self): ...\n"),
        ("A.B.m", "\t\tdef m(self): ...\n"),
        ("below_if", "  def below_if():\n    pass\n"),
        ("below_else", "    below_else = 1\n"),
        ("below_try", "    class below_try: ...\n"),
        ("below_except", "    def below_except(): ...\n"),
        ("below_with", "    below_with = (\n        1\n    )\n"),
        ("größe", "größe = 'ä'\n"),
        ("chained", "other = chained = 1\n"),
    ],
)
def test_scopes(name, expected):
    code = """\
X = 1
Y: int = 2
@a
@b(
    1
)
def f():
    def g():
        return 1
class A:
\tx = 1
\tasync def m(self): ...
\tclass B:
\t\tdef m(self): ...
if X:
  def below_if():
    pass
else:
    below_else = 1
try:
    class below_try: ...
except E:
    def below_except(): ...
with Y:
    below_with = (
        1
    )
größe = 'ä'
other = chained = 1
"""
    assert scope_text(code, name) == expected


@pytest.mark.parametrize(
    ("code", "name", "part", "message"),
    [
        ("x = 1\n", "f", "f", "no `f`"),
        ("class A: ...\n", "A.f", "f", "no `f` of `A.f`"),
        ("class B:\n    def f(self): ...\n", "A.f", "A", "no `A` of `A.f`"),
        ("def f():\n    x = 1\n", "x", "x", "no `x`"),
        ("a, b = 1, 2\n", "a", "a", "no `a`"),
        ("a += 1\n", "a", "a", "no `a`"),
    ],
)
def test_a_missing_scope_says_which_part_is(code, name, part, message):
    with pytest.raises(ScopeMissing) as error:
        Source(code.encode()).scope(name)
    assert (error.value.part, str(error.value)) == (part, message)


def test_a_property_with_a_setter_is_two_definitions():
    code = "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...\n"
    with pytest.raises(SourceError, match=r"2 definitions of `x`, on lines 3, 5"):
        Source(code.encode()).scope("A.x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff = 1\n\n", "a file that is not UTF-8 (line 1)"),
        (b"a = 1\n\n\xe9 = 1\n", "a file that is not UTF-8 (line 3)"),
        (b"b = 1\ndef f(:\n", "a file that is not Python (invalid syntax, line 2)"),
        (
            b"a = '\x00'\n",
            "a file that is not Python (source code string cannot contain null bytes)",
        ),
    ],
)
def test_a_file_that_cannot_be_read(data, message):
    with pytest.raises(SourceError) as error:
        Source(data).scope("a")
    assert str(error.value) == message


@pytest.mark.parametrize("data", [b"\xff = 1\n", b"def f(:\n", b"a\x00\n"])
def test_a_whole_file_that_cannot_be_read(data):
    with pytest.raises(SourceError, match="code that libcst cannot parse"):
        Source(data).scope("")


def test_a_comment_that_looks_like_an_encoding_is_a_comment():
    code = "# coding: latin-1\nx = 'ä'\n"
    assert Source(code.encode()).scope("").module.code == code


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_lines_and_scopes_at_any_newline(newline, bom):
    text = newline.join(["x = 1", "", "def f():", "    return 'é'", "y = 2"])
    data = bom + text.encode()
    source = Source(data)
    scope = source.scope("f")
    assert data[scope.start : scope.end].decode() == f"def f():{newline}    return 'é'{newline}"
    assert source.newline == newline.encode()
    assert [source.line_of(o) for o in (0, scope.start, scope.end - 1, len(data))] == [1, 3, 4, 5]


@pytest.mark.parametrize(("data", "line"), [(b"", 1), (b"a\n", 2), (b"a", 1), (b"a\nb", 2)])
def test_the_line_of_the_end(data, line):
    assert Source(data).line_of(len(data)) == line


def test_a_form_feed_is_no_indentation():
    code = "x = 1\n\f\ndef f():\n    return 1\n\n\fdef g():\n    return 2\n"
    assert Source(code.encode()).scope("f").indent == b""
    assert Source(code.encode()).scope("g").indent == b""


def test_an_assignment_behind_another_on_one_line():
    scope = Source(b"if x:\n    a = 1; b = 2\n").scope("b")
    assert scope.indent == b"    "
    assert scope.module.code == "if 1:\n    a = 1; b = 2\n"


@pytest.mark.parametrize("indent", ["", "  ", "\t", "    "])
def test_positions_are_bytes_of_the_file(indent):
    code = f"# ä\nif x:\n    y\nclass A:\n{indent or ' '}def f(): return 'ü', größe\n"
    source = Source(code.encode())
    for node in source.scope("A.f").nodes:
        if isinstance(node.node, cst.Name):
            assert code.encode()[node.start : node.end].decode() == node.node.value


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("x = lambda: 1\n", "x", "an assignment"),
        ("def f(): ...\n", "", "a whole file"),
    ],
)
def test_what_is_no_definition(code, name, message):
    with pytest.raises(SourceError, match=message):
        _ = Source(code.encode()).scope(name).definition


def test_parentheses_belong_to_the_outer_span():
    source = Source(b"x = ( ( a ) )\n")
    scope = source.scope("")
    (name,) = (n for n in scope.nodes if isinstance(n.node, cst.Name) and n.node.value == "a")
    assert source.data[slice(*scope.span(name.node))] == b"a"
    assert source.data[slice(*scope.outer_span(name.node))] == b"( ( a ) )"


@pytest.mark.parametrize(
    "path",
    [
        "vllm/v1/worker/utils.py",
        "vllm/config/speculative.py",
        "vllm/model_executor/models/bert.py",
        "vllm/model_executor/models/registry.py",
    ],
)
def test_spans_are_those_of_libcsts_public_way(base, path):
    scope = Source((base.root / path).read_bytes()).scope("")
    public = MetadataWrapper(scope.module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    for node in scope.nodes:
        span = public[node.node]
        assert scope.span(node.node) == (span.start, span.start + span.length)
