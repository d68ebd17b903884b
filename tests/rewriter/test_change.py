"""Byte spans: claims, splicing, and text that is laid in."""

from __future__ import annotations

import pytest

from rewriter.change import (
    Change,
    Frame,
    Write,
    block,
    comments_above,
    comments_below,
    expression_writes,
    line_end,
    line_start,
    splice,
)

POINT = Change(5, 5, (Write(5, 5, b"a"),))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Change(5, 5, (Write(5, 5, b"a"),)), False),  # the very same insertion
        (Change(5, 5, (Write(5, 5, b"b"),)), True),
        (Change(5, 5, (Write(5, 5, b"b"),), commutes=True), True),  # only one of them commutes
        (Change(6, 6, (Write(6, 6, b"b"),)), False),
        (Change(4, 6, (Write(4, 6, b"b"),)), True),
        (Change(5, 6, (Write(5, 6, b"b"),)), False),
        (Change(4, 5, (Write(4, 5, b"b"),)), False),
    ],
)
def test_what_clashes_with_an_insertion(other, expected):
    assert POINT.clashes(other) is expected
    assert other.clashes(POINT) is expected


@pytest.mark.parametrize(
    ("span", "expected"),
    [((2, 4), True), ((0, 9), True), ((3, 8), True), ((4, 8), False), ((0, 2), False)],
)
def test_spans_clash_where_they_overlap(span, expected):
    one, two = Change(2, 4, ()), Change(*span, ())
    assert one.clashes(two) is expected
    assert two.clashes(one) is expected


@pytest.mark.parametrize(("names", "expected"), [("ab", False), ("aa", True), (("", ""), False)])
def test_insertions_that_commute_clash_only_over_a_name(names, expected):
    one, two = (
        Change(5, 5, (Write(5, 5, text),), True, name)
        for name, text in zip(names, (b"1", b"2"), strict=True)
    )
    assert one.clashes(two) is expected


def test_splice_sorts_and_keeps_the_order_of_insertions():
    writes = [Write(4, 6, b"X"), Write(2, 2, b"b"), Write(2, 2, b"c"), Write(0, 1, b"")]
    assert splice(b"0123456789", writes) == b"1bc23X6789"


@pytest.mark.parametrize(("texts", "expected"), [("a", b"[<a>]"), ("ab", b"[<a, b>]")])
def test_insertions_share_their_frame(texts, expected):
    writes = [Write(1, 1, text.encode(), Frame(b"<", b", ", b">")) for text in texts]
    assert splice(b"[]", writes) == expected


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_line_start_and_end(newline):
    data = newline.join([b"ab", b"cd", b"ef"])
    start = 2 + len(newline)
    assert line_start(data, start + 1) == start
    assert line_end(data, start + 1) == start + 2 + len(newline)


def test_the_first_line_starts_behind_the_byte_order_mark():
    assert line_start(b"\xef\xbb\xbfx = 1\n", 5) == 3


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("lines", "gaps", "first"),
    [
        (["x", "# a", "# b", "y"], False, 1),
        (["x", "# a", "", "# b", "y"], False, 3),
        (["x", "# a", "", "# b", "y"], True, 1),
        (["x", "", "# b", "y"], True, 2),
        (["if x:", "    z", "    # deeper", "y"], False, 3),
        (["# a", "y"], False, 0),
        (["y"], True, 0),
    ],
)
def test_comments_above(lines, gaps, first, newline):
    data = b"".join(line.encode() + newline for line in lines)
    starts = [len(b"".join(x.encode() + newline for x in lines[:n])) for n in range(len(lines))]
    assert comments_above(data, starts[-1], b"", gaps=gaps) == starts[first]


@pytest.mark.parametrize(
    ("below", "taken"),
    [("    # in\n# out\n", "    # in\n"), ("\n    # in\nx\n", "\n    # in\n"), ("# out\n", "")],
)
def test_comments_below_a_block(below, taken):
    data = f"if x:\n    y\n{below}".encode()
    end = len(b"if x:\n    y\n")
    assert data[end : comments_below(data, end, b"")] == taken.encode()


def test_block_indents_code_and_leaves_empty_lines_empty():
    assert block("if x:\n\n    y", b"\t", b"\r\n") == b"\tif x:\r\n\r\n\t    y\r\n"


def test_block_leaves_the_inside_of_strings_alone():
    assert block('x = """a\n b"""\ny', b"  ", b"\n") == b'  x = """a\n b"""\n  y\n'


def test_block_indents_docstrings():
    code = 'def f():\n    """One.\n\n    Two.\n    """'
    expected = b'  def f():\n      """One.\n\n      Two.\n      """\n'
    assert block(code, b"  ", b"\n") == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a + b", "a - b", "a - b"),
        ("a+b", "a and b", "a and b"),
        ("f(a,  # why\n  b)", "f(a, c)", "f(a,  # why\n  c)"),
        ("f(a,  # why\r\n  b)", "f(a, c)", "f(a,  # why\r\n  c)"),
        ("a\n# why\nor b", "a or b or c", "a\n# why\nor b or c"),
        ("é + f('ü', x)", "é + f('ü', y)", "é + f('ü', y)"),
        ("f('\u2028', x)", "f('\u2028', y)", "f('\u2028', y)"),
        ("f'{a}{{b}} {c}' + d", "f'{a}{{b}} {c}' + e", "f'{a}{{b}} {c}' + e"),
        ("f\"{a['k']}\" + d", "f\"{a['k']}\" + e", "f\"{a['k']}\" + e"),
        ("'''a\nb''' + c", "'''a\nb''' + d", "'''a\nb''' + d"),
        ("a \\\n + b", "a - b", "a \\\n - b"),
        ("-x", "not x", "not x"),
        ("a or b", "b", "b"),
        ("x", "y", "y"),
        ("a\r+ b", "a + c", "a + c"),
    ],
)
def test_the_smallest_writes(old, new, expected):
    data = f"# ä\nz = {old}\n".encode()
    start, end = len("# ä\nz = ".encode()), len(data) - 1
    writes = expression_writes(data, start, end, new)
    assert splice(data, writes).decode() == f"# ä\nz = {expected}\n"


@pytest.mark.parametrize(
    ("code", "old", "new", "expected"),
    [
        ("return[a]", "[a]", "b", "return b"),
        ("x if[a]else y", "[a]", "b", "x if b else y"),
        ("f'{a}'", "a", "{b}", "f'{ {b}}'"),
        ("not(a)", "a", "b", "not(b)"),
    ],
)
def test_code_does_not_run_into_its_neighbours(code, old, new, expected):
    start = code.index(old)
    writes = expression_writes(code.encode(), start, start + len(old), new)
    assert splice(code.encode(), writes).decode() == expected
