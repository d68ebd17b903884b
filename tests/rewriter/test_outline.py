"""The outline may give up, but what it gives is what `ast` would give."""

from __future__ import annotations

import ast

import pytest

from rewriter.outline import Outline
from rewriter.source import Source


def block(code: str, name: str) -> str | None:
    found = Outline(code.encode()).block_of(name.encode())
    return None if found is None else code[found[0] : found[1]]


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ("a = 1\nb = 2\n", "b", "b = 2\n"),
        ("a = (\n    1\n)\nb = 2\n", "a", "a = (\n    1\n)\n"),
        (
            "@x\n@y(\n    1\n)\ndef f():\n    pass\nz = 1\n",
            "f",
            "@x\n@y(\n    1\n)\ndef f():\n    pass\n",
        ),
        ("async def f():\n    pass\n\n\n# about g\ndef g(): ...\n", "g", "def g(): ...\n"),
        ("class A(B):\n    x: int\nif A == 1:\n    pass\n", "A", "class A(B):\n    x: int\n"),
        ("if x:\n    y\nelse:\n    def f(): ...\n", "f", None),
        ("try:\n    def f(): ...\nexcept E:\n    def f(): ...\n", "f", None),
        ("x = 1\nx = 2\n", "x", None),
        ("x = 1\na, x = f()\n", "x", None),
        ("x: int = 1\n", "x", "x: int = 1\n"),
        ("print(x)\n", "x", None),
        ("f(\n    x=1,\n)\nx = 2\n", "x", None),
        ("a = 1\r\n", "a", None),
        ("\ufeffa = 1\n", "a", None),
    ],
)
def test_block_of(code: str, name: str, expected: str | None) -> None:
    assert block(code, name) == expected


@pytest.mark.parametrize(
    "code",
    [
        's = """\ndef f():\n    return 1\n"""\n\n\ndef f():\n    return 2\n',
        'def f():\n    """Text\nat the margin.\n    """\n    return 2\n',
        "def f(\na,\nb,\n):\n    return 2\n",
        "x = 1 + \\\n2\n\n\ndef f():\n    return 2\n",
    ],
)
def test_misleading_lines_do_not_mislead(code: str) -> None:
    scope = Source(code.encode()).scope("f")
    assert scope.module.code.rstrip().endswith("return 2")


def test_same_scopes_as_from_whole_files(base) -> None:
    """All definitions at the top level of some of vLLM's largest files."""
    paths = ["v1/worker/gpu_model_runner.py", "envs.py", "config/model.py", "lora/lora_model.py"]
    for path in paths:
        data = (base.root / "vllm" / path).read_bytes()
        lines = data.splitlines(keepends=True)
        outline = Outline(data)
        found = 0
        for node in ast.parse(data).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                span = outline.block_of(node.name.encode())
                if span is None:
                    continue
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                code = b"".join(lines[first - 1 : node.end_lineno])
                assert data[span[0] : span[1]].startswith(code), node.name
                found += 1
        assert found


def test_head_holds_every_import_of_the_top_level(base) -> None:
    for path in sorted((base.root / "vllm" / "model_executor" / "models").glob("*.py")):
        source = Source(path.read_bytes())
        here = [ast.dump(n) for n in source.head if isinstance(n, (ast.Import, ast.ImportFrom))]
        all_ = [
            ast.dump(n) for n in source.tree.body if isinstance(n, (ast.Import, ast.ImportFrom))
        ]
        assert here == all_, path
