"""Two reports against each other."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Tree, transform

from rewriter import compare, report
from rewriter.edits import In, replace
from rewriter.errors import RewriterError


def entry(id: str, outcome: str = "applied", **files: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": id,
        "outcome": outcome,
        "files": [
            {"path": f"vllm/{name}.py", "edits": 1, "added": added, "removed": removed}
            for name, (added, removed) in files.items()
        ],
    }


def made(*transforms: dict[str, Any], version: str = "0.18.0", project: str = "0.1.0") -> Any:
    return {
        "schema": 1,
        "base": {
            "name": "vllm",
            "version": version,
            "sha256": version.replace(".", "0") * 4,
            "origin": "sdist",
            "file": f"vllm-{version}.tar.gz",
            "commit": None,
        },
        "project_version": project,
        "transforms": list(transforms),
        "artifacts": {},
        "totals": {},
    }


OLD = made(
    entry("dropped"),
    entry("fixed", a=(1, 0)),
    entry("grown", a=(1, 0), b=(2, 2), same=(1, 1)),
    entry("moved", "applied", a=(3, 1)),
    entry("repaired", "drifted"),
    entry("steady", a=(1, 1)),
)
NEW = made(
    entry("steady", a=(1, 1)),
    entry("repaired", a=(1, 0)),
    entry("moved", "drifted"),
    entry("grown", a=(2, 0), c=(1, 0), same=(1, 1)),
    entry("fixed", "already-upstream"),
    entry("fresh", "applied", a=(1, 0)),
    version="0.18.1",
    project="0.2.0",
)


def test_everything_that_changed_as_text() -> None:
    assert (
        compare.compare(OLD, NEW).text()
        == """\
base version: 0.18.0 -> 0.18.1
base sha256: {} -> {}
base file: vllm-0.18.0.tar.gz -> vllm-0.18.1.tar.gz
project version: 0.1.0 -> 0.2.0

Outcomes that changed:
  fixed: applied -> already-upstream (upstream has it: the transform can be dropped for this base)
  moved: applied -> drifted (the code looks different: adapt the transform)
  repaired: drifted -> applied (works again)

New transforms:
  fresh: applied

Gone transforms:
  dropped (was applied)

Edits that changed:
  fixed: vllm/a.py: no longer edited (was +1 -0)
  grown: vllm/a.py: +1 -0 -> +2 -0
  grown: vllm/b.py: no longer edited (was +2 -2)
  grown: vllm/c.py: now edited, +1 -0
  moved: vllm/a.py: no longer edited (was +3 -1)
  repaired: vllm/a.py: now edited, +1 -0
""".format("00180" * 0 + "001800" * 4, "001801" * 4)
    )


def test_as_json() -> None:
    got = compare.compare(OLD, NEW).to_json()
    assert json.loads(json.dumps(got)) == got
    assert got["same"] is False
    assert got["base"]["version"] == {"old": "0.18.0", "new": "0.18.1"}
    assert got["project_version"] == {"old": "0.1.0", "new": "0.2.0"}
    assert got["added"] == [{"id": "fresh", "outcome": "applied"}]
    assert got["removed"] == [{"id": "dropped", "outcome": "applied"}]
    assert got["outcomes"][1] == {
        "id": "moved",
        "old": "applied",
        "new": "drifted",
        "note": "the code looks different: adapt the transform",
    }
    assert got["files"][1] == {
        "id": "grown",
        "path": "vllm/a.py",
        "old": {"added": 1, "removed": 0},
        "new": {"added": 2, "removed": 0},
    }


def test_nothing_changed() -> None:
    same = compare.compare(OLD, copy.deepcopy(OLD))
    assert same.same
    assert same.text() == "Nothing changed.\n"
    assert same.to_json()["same"] is True


def test_one_hash_alone_is_a_change() -> None:
    other = copy.deepcopy(OLD)
    other["base"]["sha256"] = "f" * 64
    found = compare.compare(OLD, other)
    assert not found.same
    assert list(found.base) == ["sha256"]


@pytest.mark.parametrize("old", ["applied", "drifted"])
@pytest.mark.parametrize(
    "new", ["already-upstream", "not-applicable", "conflict", "target-missing"]
)
def test_every_change_has_a_note(old: str, new: str) -> None:
    (change,) = compare.compare(made(entry("a", old)), made(entry("a", new))).outcomes
    assert change.note


def lost(outcome: str, *problems: tuple[str, str | None], fixed: bool = False) -> dict[str, Any]:
    """An entry with problems: what each found, and the place that it names."""
    entries = [
        {
            "found": found,
            "nearest": [{"path": place, "line": 7, "code": "x"}] if place else [],
            "looks_fixed": fixed,
        }
        for found, place in problems
    ]
    return {**entry("a", outcome), "problems": entries}


MOVED = "vllm/new.py"


@pytest.mark.parametrize("old", ["applied", "drifted"])
@pytest.mark.parametrize(
    ("problems", "note"),
    [
        ([("no `f`", MOVED)], "it seems to have moved to vllm/new.py:7: adapt the transform"),
        ([("no `f` of `A.f`", MOVED)] * 2, "it seems to have moved to vllm/new.py:7: adapt"),
        ([("no such file", MOVED), ("no `g`", "b.py")], "moved to vllm/new.py:7 and 1 more place:"),
        ([("no such file", MOVED), ("no `g`", None)], "some code is gone, the rest seems to have"),
        ([("no `f`", MOVED), ("0 matches", "b.py")], "it seems to have moved to vllm/new.py:7:"),
        ([("no `f`", None), ("0 matches", "b.py")], None),
        ([("no such file", None)], None),
    ],
)
def test_code_that_moved_is_not_called_gone(old: str, problems: Any, note: str | None) -> None:
    new = made(lost("target-missing", *problems))
    (change,) = compare.compare(made(entry("a", old)), new).outcomes
    if note is None:
        gone = "the code is gone: adapt or drop the transform"
        assert change.note == (gone if old == "applied" else "still fails, for another reason")
    else:
        assert note in change.note


@pytest.mark.parametrize("outcome", ["target-missing", "drifted"])
def test_a_base_that_looks_fixed_is_said(outcome: str) -> None:
    new = made(lost(outcome, ("no `f`", MOVED), fixed=True))
    (change,) = compare.compare(made(entry("a")), new).outcomes
    assert change.note.startswith("the base looks fixed already")


@pytest.mark.parametrize(
    "problems", [7, [7], [{}], [{"found": "no `f`", "nearest": 3}], [{"found": "no `f`"}]]
)
def test_problems_that_say_nothing(problems: Any) -> None:
    new = made({**entry("a", "target-missing"), "problems": problems})
    (change,) = compare.compare(made(entry("a")), new).outcomes
    assert change.note == "the code is gone: adapt or drop the transform"


def test_what_a_rewrite_finds_missing_is_understood(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    files = {
        "vllm/a.py": "class A:\n    x = 1\n",
        "vllm/b.py": "\ndef f():\n    a\n\nclass B:\n    def g(self):\n        a\n",
    }
    targets = {"one": "f", "two": "A.g"}
    transforms = [
        transform(In("vllm/a.py", scope).do(replace("a", "b")), id=id)
        for id, scope in targets.items()
    ]
    transforms.append(transform(In("vllm/old/b.py", "f").do(replace("a", "b")), id="three"))
    base = tree.write(files)
    new = report.to_json(base, tree.run(files, *transforms), transforms, {})
    old = {**new, "transforms": [{**t, "outcome": "applied"} for t in new["transforms"]]}
    notes = {change.id: change.note for change in compare.compare(old, new).outcomes}
    assert notes == {
        "one": "it seems to have moved to vllm/b.py:2: adapt the transform",
        "two": "it seems to have moved to vllm/b.py:6: adapt the transform",
        "three": "it seems to have moved to vllm/b.py:2: adapt the transform",
    }


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in OLD.items() if name != key}


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ([], "no JSON object"),
        (None, "no JSON object"),
        ({}, "it has no schema"),
        ({**OLD, "schema": 2}, "has schema 2, this version reads 1"),
        ({**OLD, "schema": True}, "has schema True"),
        ({**OLD, "schema": "1\n2"}, "has schema"),
        ({**OLD, "schema": "x" * 500}, "has schema"),
        (without("base"), "it has no base"),
        ({**OLD, "base": {"version": "0.18.0"}}, "its base is broken"),
        (without("project_version"), "no project_version"),
        (without("transforms"), "no list of transforms"),
        ({**OLD, "transforms": {}}, "no list of transforms"),
        ({**OLD, "transforms": [entry("a"), 7]}, "its transform 2 is broken"),
        ({**OLD, "transforms": [entry("a"), entry("a")]}, "its transform 2 is there twice"),
        ({**OLD, "transforms": [entry("a", "great")]}, "its transform 1 is broken"),
        ({**OLD, "transforms": [{**entry("a"), "outcome": ["applied"]}]}, "transform 1 is broken"),
        ({**OLD, "transforms": [{**entry("a"), "files": [{"path": 1}]}]}, "transform 1 is broken"),
        ({**OLD, "transforms": [{**entry("a"), "id": None}]}, "transform 1 is broken"),
    ],
)
def test_a_malformed_report_is_one_line(old: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(RewriterError, match="the old report") as caught:
        compare.compare(old, NEW)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    with pytest.raises(RewriterError, match=r"old\.json") as loaded:
        compare.load(path)
    for error in (caught, loaded):
        message = str(error.value)
        assert words in message
        assert "\n" not in message
        assert len(message) < 300 + len(str(path))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"not json at all\nreally"], ids=range(5)
)
def test_no_json(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(data)
    with pytest.raises(RewriterError, match="is not JSON") as caught:
        compare.load(path)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RewriterError, match="cannot read"):
            compare.load(path)


def test_a_good_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(OLD))
    assert compare.load(path) == OLD
