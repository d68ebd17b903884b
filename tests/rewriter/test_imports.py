"""Imports that edits add or drop."""

from __future__ import annotations

import pytest

from rewriter.change import splice
from rewriter.edits import In, insert_after
from rewriter.imports import Import, import_writes, parse_imports
from rewriter.snippet import SnippetError
from rewriter.source import Source


def changed(code: str, add: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> str:
    source = Source(code.encode())
    added = [item for statement in add for item in parse_imports(statement)]
    dropped = [item for statement in drop for item in parse_imports(statement)]
    return splice(source.data, import_writes(source, added, dropped)).decode()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import a", (Import("a"),)),
        ("import a.b, c", (Import("a.b"), Import("c"))),
        ("from a.b import c, d", (Import("a.b", "c"), Import("a.b", "d"))),
        ("from . import a", (Import("", "a", 1),)),
        ("from ..a import b", (Import("a", "b", 2),)),
    ],
)
def test_parse(statement, expected):
    assert parse_imports(statement) == expected
    assert [i for found in expected for i in parse_imports(str(found))] == list(expected)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "a",
        "import a as b",
        "from a import *",
        "import a\nimport b",
        "from a import",
        "x = 1",
        3,
    ],
)
def test_what_is_no_plain_import(statement):
    with pytest.raises(SnippetError):
        parse_imports(statement)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import a\n", "import a\nimport n\n"),
        ("import a", "import a\nimport n"),
        ("import a\r\nx = 1\r\n", "import a\r\nimport n\r\nx = 1\r\n"),
        ("import a\nx\nimport b\nimport c\ny\n", "import a\nx\nimport b\nimport c\nimport n\ny\n"),
        ("import a; x = 1\n", "import a; x = 1\nimport n\n"),
        ('import a; x = """\n"""\n', 'import a; x = """\n"""\nimport n\n'),
        ("from a import (\n    b,\n)\n", "from a import (\n    b,\n)\nimport n\n"),
        ("from a import \\\n    b\n", "from a import \\\n    b\nimport n\n"),
        ("from __future__ import a\nx\n", "from __future__ import a\nimport n\nx\n"),
        ('"""Doc."""\n', '"""Doc."""\nimport n\n'),
        ('"""Doc."""', '"""Doc."""\nimport n'),
        ('# top\n"""Doc."""\nx = 1\n', '# top\n"""Doc."""\nimport n\nx = 1\n'),
        ("x = 1\n", "import n\nx = 1\n"),
        ("#!/usr/bin/env python\n# top\n", "#!/usr/bin/env python\n# top\nimport n\n"),
        ("# top\nx = 1\n", "# top\nimport n\nx = 1\n"),
        ("# top\n\n# on x\nx = 1\n", "# top\n\nimport n\n# on x\nx = 1\n"),
        ("@a\ndef f(): ...\n", "import n\n@a\ndef f(): ...\n"),
        ("", "import n\n"),
        ("\ufeffx = 1\n", "\ufeffimport n\nx = 1\n"),
        ("\ufeff", "\ufeffimport n\n"),
        ("if TYPE_CHECKING:\n    import n\n", "import n\nif TYPE_CHECKING:\n    import n\n"),
        ("try:\n    import n\nexcept E: ...\n", "import n\ntry:\n    import n\nexcept E: ...\n"),
        ("import n as m\n", "import n as m\nimport n\n"),
        ("import n\n", "import n\n"),
        ("import a, n\n", "import a, n\n"),
    ],
)  # fmt: skip
def test_add(before, after):
    assert changed(before, add=("import n",)) == after


def test_several_imports_are_sorted_and_each_is_added_once():
    add = ("from b import d", "import a", "from b import c", "import a", "from . import z")
    assert changed("x = 1\n", add=add) == (
        "from . import z\nimport a\nfrom b import c\nfrom b import d\nx = 1\n"
    )


def test_a_name_that_is_imported_is_not_imported_again():
    assert changed("from a import b, c\n", add=("from a import b",)) == "from a import b, c\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import a\n", "from __future__ import annotations\nimport a\n"),
        ('"""Doc."""\nimport a\n', '"""Doc."""\nfrom __future__ import annotations\nimport a\n'),
        ("# top\nimport a\n", "# top\nfrom __future__ import annotations\nimport a\n"),
    ],
)
def test_an_import_from_the_future_comes_first(before, after):
    assert changed(before, add=("from __future__ import annotations",)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import n\nx\n", "x\n"),
        ("import n", ""),
        ("import n  # why\r\nx\r\n", "x\r\n"),
        ("from m import (\n    a,\n)\nx\n", "x\n"),
        ("from m import a, b\n", "from m import b\n"),
        ("from m import b, a\n", "from m import b\n"),
        ("from m import c, a, b\n", "from m import c, b\n"),
        ("from m import (\n    a,\n    b,\n)\n", "from m import (\n    b,\n)\n"),
        ("from m import (\n    b,\n    a,\n)\n", "from m import (\n    b,\n)\n"),
        ("import b, n\n", "import b\n"),
        ("import n; x = 1\n", "x = 1\n"),
        ("x = 1; import n\n", "x = 1\n"),
        ("import n as m\n", "import n as m\n"),
        ("if x:\n    import n\n", "if x:\n    import n\n"),
        ("import n\nimport n\n", ""),
    ],
)
def test_drop(before, after):
    assert changed(before, drop=("import n", "from m import a")) == after


def test_dropping_two_names_at_the_end():
    code = "from m import a, b, c, d\n"
    assert changed(code, drop=("from m import b, d", "from m import c")) == "from m import a\n"


def test_an_import_that_is_wanted_stays():
    assert changed("import n\n", add=("import n",), drop=("import n",)) == "import n\n"


@pytest.mark.parametrize(
    ("written", "modules"),
    [
        ("ascend_runtime.a.f(ascend_runtime.b.g)", ["a", "b"]),
        ("    x = ascend_runtime.a.f()\n    y = ascend_runtime.a.f()", ["a"]),
        ('patch("ascend_runtime.a.f", None)', []),
        ('f("""ascend_runtime.a""")  # ascend_runtime.b', []),
        ("not_ascend_runtime.a.f()", []),
    ],
)
def test_runtime_modules_are_imported_where_code_names_them(written, modules) -> None:
    target = In("vllm/a.py").do(insert_after("pass", written))
    assert target.all_imports == tuple(f"import ascend_runtime.{name}" for name in modules)
