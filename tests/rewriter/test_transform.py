"""What a transform's declaration must hold."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import libcst as cst
import pytest
from engine_kit import transform

from rewriter import project
from rewriter.edits import (
    Codemod,
    In,
    add_entry,
    add_item,
    add_keyword,
    insert_after,
    insert_before,
    replace,
    set_keyword,
)
from rewriter.snippet import SnippetError
from rewriter.transform import GENERATED, Example, Transform, TransformError, Upstream

EDIT = replace("a", "b")
GOOD = transform(In("vllm/a.py", "f").do(EDIT))
DOC = "Change something.\n\nSomething is wrong.\n"


def bound(candidate: Transform, id: str = "one", doc: str = DOC) -> Transform:
    return candidate.bound(id=id, doc=doc, source=Path("one.py"), source_lines=3)


def refused(candidate: Transform, **more: str) -> str:
    with pytest.raises(TransformError) as caught:
        bound(candidate, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_catalogue_fills_in():
    got = bound(GOOD)
    assert (got.id, got.title, got.body, got.source_lines) == (
        "one",
        "Change something",
        "Something is wrong.",
        3,
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", "platform", "seed 'platform' is not like 'platform/3' or 'worker/7a'"),
        ("seed", ["worker/1", "worker/123"], "seed 'worker/123' is not like"),
        ("seed", 3, "seed must be a list, not 3"),
        ("seed", [3], "seed holds 3, not a string"),
        ("tag", "Fix", "tag 'Fix' is not one of Bugfix, Core"),
        ("tag", None, "tag must be a string, not None"),
        ("vllm", "0.18", "vllm '0.18' is not a version specifier"),
        ("vllm", 0.18, "vllm must be a string, not 0.18"),
        ("upstream", "Pending", "upstream is 'Pending', not Upstream.pending(...) or the like"),
        ("remove_when", " ", "remove_when is empty"),
        ("edits", [], "there are no edits"),
        ("edits", "abc", "edits must be a list, not 'abc'"),
        ("edits", [EDIT], "edits holds "),
        ("edits", In("vllm/a.py").do(EDIT), "edits must be a list"),
        ("edits", [In("/vllm/a.py").do(EDIT)], "'/vllm/a.py' is not like 'vllm/a.py'"),
        ("edits", [In("vllm/../a.py").do(EDIT)], "'vllm/../a.py' is not like 'vllm/a.py'"),
        ("edits", [In("setup.py").do(EDIT)], "'setup.py' is not like 'vllm/a.py'"),
        ("edits", [In("vllm/a.cu").do(EDIT)], "'vllm/a.cu' is not like 'vllm/a.py'"),
        ("edits", [In("vllm/a\n.py").do(EDIT)], "'vllm/a\\n.py' is not like 'vllm/a.py'"),
        ("edits", [In("vllm/\udcff.py").do(EDIT)], "'vllm/\\udcff.py' is not like 'vllm/a.py'"),
        ("edits", [In(GENERATED).do(EDIT)], "vllm/_version.py is made anew for the wheel"),
        ("upstream", Upstream("Maybe"), "upstream 'Maybe' is none of the statuses"),
        ("upstream", Upstream.pending(3), "upstream says 3, not a string"),
        ("after", "two", "after must be a list, not 'two'"),
        ("after", ["one"], "after names the transform itself"),
        ("examples", [1], "examples holds 1, not Example(...)"),
        ("examples", [Example("vllm/a.py", 3, "")], "an example takes a path and two texts"),
        ("examples", [Example("vllm/a.py", "", 3)], "an example takes a path and two texts"),
        ("examples", [Example("vllm/b.py", "", None)], "the example for vllm/b.py names no file"),
        ("monkey_patch_lines", -1, "monkey_patch_lines is negative"),
        ("monkey_patch_lines", "1", "monkey_patch_lines must be a number"),
    ],
)
def test_fields(field, value, message):
    got = refused(changed(GOOD, **{field: value}))
    assert got.startswith(f"transform one: {message}")


def test_a_target_has_something_to_do():
    with pytest.raises(SnippetError, match=r"vllm/a\.py: nothing to do"):
        In("vllm/a.py").do()


def test_the_file_that_the_wheel_makes_is_known():
    assert GENERATED == project.VERSION_FILE


class Anything(cst.CSTTransformer):
    """Changes nothing."""


@pytest.mark.parametrize("count", ["1", 0, -1, 1.0, True, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda count: replace("a", "b", count=count),
        lambda count: replace("a = 1", "a = 2", count=count),
        lambda count: replace("a = 1", "", count=count),
        lambda count: insert_after("a = 1", "a = 2", count=count),
        lambda count: insert_before("a = 1", "a = 2", count=count),
        lambda count: set_keyword("f(...)", a="1", count=count),
        lambda count: add_keyword("f(...)", a="1", count=count),
        lambda count: add_item("a", "1", count=count),
        lambda count: add_entry("a", "1", "2", count=count),
        lambda count: Codemod(Anything, "change", count),
    ],
)
def test_a_count_is_a_positive_number(make, count):
    assert make(2).count == 2
    with pytest.raises(SnippetError) as caught:
        make(count)
    assert str(caught.value) == f"count must be a whole number from 1 on, not {count!r}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: In(3),
        lambda: In(Path("vllm/a.py")),
        lambda: In("vllm/a.py", None),
        lambda: replace(3, "b"),
        lambda: replace("a", None),
        lambda: set_keyword("f(...)", a=False),
        lambda: insert_after("a", 3),
        lambda: add_item("a b", "1"),
        lambda: add_item("self.a", "1"),
        lambda: add_item(3, "1"),
        lambda: add_entry("a[0]", "1", "2"),
        lambda: add_entry("a", 1, "2"),
        lambda: In("vllm/a.py").do(EDIT, fixed_by=3),
    ],
)
def test_arguments_of_the_wrong_kind(make):
    with pytest.raises(SnippetError):
        make()


@pytest.mark.parametrize(
    ("doc", "message"),
    [
        ("", "the docstring's first line must be a sentence"),
        ("Change something\n\nMore.", "the docstring's first line must be a sentence"),
        (f"{'x' * 72}.\n\nMore.", "the docstring's first line is 73 characters, 72 at most"),
        ("Change something.", "the docstring must say what is wrong and what the edit does"),
        ("Change something.\nMore.", "the docstring needs an empty line after the first"),
    ],
)
def test_docstrings(doc, message):
    assert refused(GOOD, doc=doc) == f"transform one: {message}"


@pytest.mark.parametrize("id", ["One", "1one", "o-ne", "_one", ""])
def test_ids(id):
    assert "lower case letters" in refused(GOOD, id=id)


def test_seeds_as_a_tuple():
    assert GOOD.seeds == ()
    assert changed(GOOD, seed="worker/1").seeds == ("worker/1",)
    assert changed(GOOD, seed=["worker/1", "platform/2a"]).seeds == ("worker/1", "platform/2a")


@pytest.mark.parametrize(
    ("upstream", "alone"),
    [
        (Upstream.pending(), True),
        (Upstream.submitted("a"), True),
        (Upstream.backport("a"), True),
        (Upstream.denied("a"), False),
        (Upstream.inappropriate("a"), False),
    ],
)
@pytest.mark.parametrize(
    "target",
    [
        In("vllm/a.py").do(replace("a", "ascend_runtime.x.y()")),
        In("vllm/a.py").do(set_keyword("f(...)", k="ascend_runtime.x.y()")),
        In("vllm/a.py").do(EDIT, imports="import ascend_runtime.x"),
    ],
)
def test_edits_for_upstream_do_not_mention_the_runtime(upstream, alone, target):
    candidate = changed(GOOD, upstream=upstream, edits=[target])
    if alone:
        assert "must not mention ascend_runtime" in refused(candidate)
    else:
        assert bound(candidate).edits == [target]


@pytest.mark.parametrize(
    ("version", "applies"),
    [("0.18.0", True), ("0.18.1rc1", True), ("0.17.9", False), ("0.18.0+npu.1", True)],
)
def test_versions(version, applies):
    assert GOOD.applies_to(version) is applies


def test_upstream_status_in_words():
    assert str(Upstream.pending()) == "Pending"
    assert str(Upstream.denied("no")) == "Denied [no]"
