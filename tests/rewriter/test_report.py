"""The report as JSON, as a table and as a page; `test_report_browser.py` opens the page."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import sample_report
from sample_report import EXECUTOR, SAMPLER

from rewriter import __version__, report, sidebyside
from rewriter.outcome import Near, Outcome, Problem, Result
from rewriter.rewrite import Rewritten

BUILDS = {"good": sample_report.good, "bad": sample_report.bad}


def as_json(build: sample_report.Sample) -> dict[str, object]:
    return report.to_json(build.base, build.rewritten, build.transforms, build.artifacts)


def as_table(build: sample_report.Sample, *, color: bool = False, width: int = 100) -> str:
    return report.table(build.rewritten, build.transforms, color=color, width=width)


def as_page(build: sample_report.Sample) -> str:
    return report.html(
        build.base, build.rewritten, build.transforms, build.originals, build.artifacts
    )


@pytest.mark.parametrize("name", BUILDS)
def test_json_fits_its_schema(name: str) -> None:
    schema = report.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(as_json(BUILDS[name]()), schema)


def test_the_schema_refuses_a_wrong_report() -> None:
    schema = report.json_schema()
    for path, value in (
        (("schema",), 2),
        (("base", "file"), "folder/vllm.tar.gz"),
        (("transforms", 0, "outcome"), "fine"),
        (("transforms", 0, "extra"), 1),
    ):
        wrong = as_json(sample_report.good())
        at = wrong
        for key in path[:-1]:
            at = at[key]  # type: ignore[index, assignment]
        at[path[-1]] = value  # type: ignore[index]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_json_in_full() -> None:
    build = sample_report.good()
    got = as_json(build)
    assert got["base"] == {
        "name": "vllm",
        "version": "0.18.0",
        "sha256": "9a" * 32,
        "origin": "sdist",
        "file": "vllm-0.18.0.tar.gz",
        "commit": None,
    }
    assert got["project_version"] == __version__
    assert got["artifacts"] == build.artifacts
    entries = got["transforms"]
    assert isinstance(entries, list)
    assert [entry["id"] for entry in entries] == sorted(t.id for t in build.transforms)
    assert entries[3] == {
        "id": "worker_daemon",
        "seed": ["platform/3"],
        "outcome": "applied",
        "files": [{"path": EXECUTOR, "edits": 1, "added": 3, "removed": 1}],
        "detail": "",
        "problems": [],
        "upstream": {
            "status": "Inappropriate",
            "detail": "the switch is an Ascend environment variable",
        },
        "lines_transform": 27,
        "lines_monkey_patch": 211,
        "inserted": 3,
    }
    assert got["totals"] == {
        "transforms": 4,
        "outcomes": {
            "applied": 2,
            "already-upstream": 1,
            "not-applicable": 1,
            "drifted": 0,
            "target-missing": 0,
            "conflict": 0,
        },
        "files": 3,
        "edits": 3,
        "added": 9,
        "removed": 4,
        "lines_transforms": 75,
        "lines_monkey_patch": 301,
    }


def test_problems_in_json() -> None:
    entries = as_json(sample_report.bad())["transforms"]
    assert isinstance(entries, list)
    first, second = entries[0]["problems"]
    assert first["scope"] == "WorkerProc.make_worker_process"
    assert first["nearest"][0]["line"] == 412
    assert (first["looks_fixed"], second["looks_fixed"]) == (False, True)


@pytest.mark.parametrize("name", BUILDS)
def test_reports_are_the_same_twice_and_in_any_order(name: str) -> None:
    one, two = BUILDS[name](), BUILDS[name]()
    old = two.rewritten
    two.rewritten = Rewritten(
        old.results[::-1], dict(reversed(old.files.items())), old.alone, old.series
    )
    two.transforms.reverse()
    two.artifacts = dict(reversed(two.artifacts.items()))
    assert report.dumps(as_json(one)) == report.dumps(as_json(two))
    assert as_table(one) == as_table(two)
    assert as_page(one) == as_page(two)


@pytest.mark.parametrize("name", BUILDS)
def test_no_path_of_this_machine(name: str) -> None:
    build = BUILDS[name]()
    for text in (report.dumps(as_json(build)), as_table(build), as_page(build)):
        assert str(build.base.root) not in text
        assert str(Path.cwd()) not in text


def test_dumps_is_json_a_line_feed_at_the_end() -> None:
    got = as_json(sample_report.bad())
    text = report.dumps(got)
    assert json.loads(text) == got
    assert text.endswith("}\n")
    assert "\x1b" not in text


def test_the_table_shows_every_problem() -> None:
    text = as_table(sample_report.bad())
    assert re.search(r"^worker_daemon +platform/3 +applied +1 +3 +1 +27 +211$", text, re.MULTILINE)
    narrow = as_table(sample_report.bad(), width=71)
    assert re.search(r"^worker_daemon +platform/3 +applied +1 +3 +1$", narrow, re.MULTILINE)
    for line in (
        "  vllm/v1/executor/multiproc_executor.py: WorkerProc.make_worker_process",
        "    edit      set `daemon=ascend_runtime.executor.worker_daemon()`"
        " in `context.Process(...)`",
        "    expected  1 match",
        "    found     0 matches",
        f"    nearest   {EXECUTOR}:412: proc = context.Process(",
        "    The base looks fixed already: see whether the transform can be dropped.",
        "    found     no such file",
        "two_owners conflict: with stable_argsort",
        "              by `q`",
    ):
        assert line in text.splitlines(), line
    assert text.splitlines()[-1] == (
        "7 transforms: 2 applied, 1 already-upstream, 1 not-applicable,"
        " 1 drifted, 1 target-missing, 1 conflict"
    )


def test_the_table_is_coloured_when_asked_only(monkeypatch: pytest.MonkeyPatch) -> None:
    build = sample_report.bad()
    plain = as_table(build)
    assert "\x1b" not in plain
    colored = as_table(build, color=True)
    assert "\x1b[" in colored
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()
    for name, value in (
        ("FORCE_COLOR", "1"),
        ("NO_COLOR", "1"),
        ("COLUMNS", "20"),
        ("TERM", "dumb"),
    ):
        monkeypatch.setenv(name, value)
        assert as_table(build) == plain
        assert as_table(build, color=True) == colored
        monkeypatch.delenv(name)


def test_a_narrow_table_loses_nothing() -> None:
    text = as_table(sample_report.bad(), width=50)
    table, _, rest = text.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 50
    assert "…" not in text
    assert f"{EXECUTOR}: WorkerProc.make_worker_process" in rest  # one line, to be copied


def test_the_table_obeys_no_control_character() -> None:
    odd = Problem("vllm/a.py", "f", "replace `[red]x[/red]`", "1 match", "\x1b[2J\x07 0\rmatches")
    done = Rewritten((Result("odd", Outcome.DRIFTED, "[bold]no", (), (odd,)),), {}, {}, ())
    text = report.table(done, [sample_report.make("odd")], color=False, width=80)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/red]" in text
    assert "[bold]no" in text


def test_nothing_to_do() -> None:
    empty = sample_report.Sample(Rewritten((), {}, {}, ()), [], artifacts={})
    jsonschema.validate(as_json(empty), report.json_schema())
    assert as_table(empty).splitlines()[-1] == "0 transforms: nothing to do"
    assert "</html>" in as_page(empty)


class Outline(HTMLParser):
    """Checks that the tags nest, and collects what the page would load."""

    VOID = frozenset({"meta", "link", "input", "col", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "src" or (name == "href" and tag == "link"):
                self.loads.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())


@pytest.mark.parametrize("name", BUILDS)
def test_the_page_is_sound_and_self_contained(name: str) -> None:
    page = as_page(BUILDS[name]())
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.loads == ["data:,"]
    assert "@import" not in page
    assert "url(" not in page
    assert page.startswith("<!doctype html>")


def test_the_page_says_what_failed_and_why() -> None:
    page = as_page(sample_report.bad())
    assert "<b>Build failed.</b> 3 of 7 transforms" in page
    assert "proc = ctx.Process(target=&lt;b&gt;worker&lt;/b&gt;, daemon=is_daemon)" in page
    assert page.count("The base looks fixed already") == 1
    assert "Build failed" not in as_page(sample_report.good())


def test_one_built_on_another_shows_its_own_change_only() -> None:
    build = sample_report.good()
    once = build.rewritten.files[SAMPLER]
    twice = once.replace(b"order.int()", b"order.long()")
    old = build.rewritten
    build.rewritten = Rewritten(
        (*old.results, Result("wider", Outcome.APPLIED)),
        {**old.files, SAMPLER: twice},
        {**old.alone, "wider": {SAMPLER: twice}},
        (*old.series, ("wider", {SAMPLER: twice})),
    )
    build.transforms.append(sample_report.make("wider", after=["stable_argsort"]))
    article = as_page(build).partition('<article id="t-wider"')[2].partition("</article>")[0]
    assert '<span class="plus">+1</span> <span class="minus">&minus;1</span>' in article


def rows(before: str, after: str, path: str = "a.py") -> list[tuple[str, str]]:
    """The rows of a view as plain text, changed words in brackets."""

    def plain(cell: sidebyside.Cell | None) -> str:
        if cell is None:
            return "-"
        marked = re.sub(r'<span class="(?:\w )?x">(.*?)</span>', r"[\1]", str(cell.code))
        text = re.sub(r"<.*?>", "", marked).replace("][", "")
        return f"{cell.number} {text}"

    found = sidebyside.blocks(path, before.encode(), after.encode())
    return [(plain(row.old), plain(row.new)) for block in found for row in block.rows]


def test_changed_lines_stand_beside_each_other() -> None:
    assert rows("a\nf(x, daemon=True)\nz\n", "a\nnew = 1\nf(x, daemon=make())\nz\n") == [
        ("1 a", "1 a"),
        ("-", "2 new = 1"),
        ("2 f(x, daemon=[True])", "3 f(x, daemon=[make()])"),
        ("3 z", "4 z"),
    ]


def test_lines_that_have_nothing_in_common_are_not_marked() -> None:
    assert rows("a\nreturn x\n", "a\nraise ValueError(y)\n")[1] == (
        "2 return x",
        "2 raise ValueError(y)",
    )


def test_a_hunk_inside_a_docstring_is_a_string() -> None:
    text = 'def f():\n    """One.\n\n    two\n    if three\n    four\n    """\n'
    view = sidebyside.blocks("a.py", text.encode(), text.replace("three", "3").encode(), 1)
    for row in view[0].rows:
        for cell in (row.old, row.new):
            assert cell
            assert 'class="k"' not in cell.code
            assert 'class="s' in cell.code


def test_odd_text_in_a_view() -> None:
    view = sidebyside.blocks(
        "a.py", b"\xef\xbb\xbfa = '\xff'\r\nb = 1", b"\xef\xbb\xbfa = 2\r\nb = 1\n"
    )
    text = "".join(f"{row.old} {row.new}" for row in view[0].rows)
    assert "^M" in text
    assert "\ufffd" in text
    assert view[0].rows[-1].old and view[0].rows[-1].old.end
    assert rows("<b>\n", "<i>\n", "a.txt") == [("1 &lt;b&gt;", "1 &lt;i&gt;")]


def test_a_large_file_costs_no_more_than_a_small_one() -> None:
    lines = [f"def f{i}(a):\n    return a + {i}\n\n\n" for i in range(3000)]
    before = "".join(lines).encode()
    after = before.replace(b"a + 1500\n", b"a - 1500\n").replace(b"a + 20\n", b"a - 20\n")
    start = time.process_time()
    sidebyside.blocks("a.py", before, after)
    assert time.process_time() - start < 2


def test_a_problem_is_described_on_one_line() -> None:
    problem = Problem(
        "vllm/a.py",
        "f",
        "insert `if x:\n    y()` after `z`",
        "1 match",
        "0 matches",
        (Near("vllm/a.py", 3, "z(\n    1)"),),
    )
    assert problem.describe() == (
        "vllm/a.py: f: insert `if x: y()` after `z`: expected 1 match, found 0 matches;"
        " nearest is vllm/a.py:3: z( 1)"
    )
