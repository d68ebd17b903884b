"""The page of all transforms, read back by a Markdown parser where that matters."""

from __future__ import annotations

from html.parser import HTMLParser

from markdown_it import MarkdownIt
from sample_report import EXECUTOR, NASTY_BODY, SAMPLER, SampleEdit, SampleTarget, make

from rewriter.catalog import load
from rewriter.docs import explain, transforms_page
from rewriter.transform import Example, Upstream

BEFORE = "a = 1\nb = '|'\n"


class Text(HTMLParser):
    """The text and the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def rendered(page: str) -> Text:
    return Text(MarkdownIt("commonmark").enable("table").render(page))


TRANSFORMS = [
    make(
        "worker_daemon",
        "Let `workers` start <b>processes</b> | of *their* own",
        NASTY_BODY
        + "\n# no heading\n> no quotation\n\n__init__ and snake_case_name, _x_ &amp; \\n\n",
        seed=["platform/3", "platform/4"],
        upstream=Upstream.inappropriate("a | b"),
        targets=[
            SampleTarget(
                EXECUTOR,
                "WorkerProc.make_worker_process",
                (
                    SampleEdit("set `daemon=a | b` in `context.Process(...)`"),
                    SampleEdit("insert `x = 1\nif x:\n    y()` after `z`"),
                ),
                imports=("import ascend_runtime.executor",),
                dropped=("import os",),
            ),
            SampleTarget(SAMPLER),
        ],
        examples=[
            Example(EXECUTOR, BEFORE, BEFORE.replace("1", "2")),
            Example(EXECUTOR, 'x = """```\n"""\n', None),
            Example(SAMPLER, BEFORE, BEFORE),
        ],
        patch_lines=211,
    ),
    make("another", after=["worker_daemon"]),
]


def test_the_index_survives_bars() -> None:
    page = transforms_page(TRANSFORMS)
    index = page.partition("| Transform")[2].partition("\n\n")[0].splitlines()
    assert len(index) == 4
    html = MarkdownIt("commonmark").enable("table").render(page)
    table = html.partition("<tbody>")[2].partition("</tbody>")[0]
    assert table.count("<tr>") == 2
    assert table.count("<td>") == 10
    assert '<a href="#another"><code>another</code></a>' in table
    assert "<td>platform/3, platform/4</td>" in table
    assert "<code>&gt;=0.18,&lt;0.20</code>" in table


def test_a_section_says_everything() -> None:
    page = transforms_page(TRANSFORMS)
    for line in (
        "## worker_daemon",
        "* Seed rows: platform/3, platform/4",
        "* Upstream status: Inappropriate [a | b]",
        "* Can be removed when: vLLM lets a platform choose",
        "* Size: 30 lines; the monkey-patch: 211",
        f"* `{EXECUTOR}`, in `WorkerProc.make_worker_process`",
        "    * set `daemon=a | b` in `context.Process(...)`",
        "    * have `import ascend_runtime.executor`",
        "    * lose `import os`",
        f"* `{SAMPLER}`",
        "* Comes after: [`worker_daemon`](#worker_daemon)",
        "* Size: 30 lines",
    ):
        assert line in page.splitlines(), line
    assert page.index("## another") < page.index("## worker_daemon")


def test_code_of_several_lines_is_a_block() -> None:
    assert """\
    * insert

      ```python
      x = 1
      if x:
          y()
      ```

      after `z`
""" in transforms_page(TRANSFORMS)


def test_examples_are_diffs_that_nothing_breaks() -> None:
    page = transforms_page(TRANSFORMS)
    assert "```diff\n-a = 1\n+a = 2\n b = '|'\n```\n" in page
    assert '````python\nx = """```\n"""\n````' in page
    assert "which it must not touch" in page
    assert "which stays as it is" in page


def test_prose_stays_prose() -> None:
    read = rendered(transforms_page(TRANSFORMS))
    assert not {"b", "img", "script", "em", "blockquote", "h1"} - {"h1"} & set(read.tags)
    assert read.tags.count("h1") == 1
    assert "A body may hold </script><b>bold</b>" in read.words
    assert "Let workers start <b>processes</b> | of *their* own" in read.words
    assert "# no heading" in read.words
    assert "> no quotation" in read.words
    assert "__init__ and snake_case_name, _x_ &amp; \\n" in read.words
    assert 'code = "indented"\n    stays = True' in read.words


def test_the_same_text_in_any_order() -> None:
    assert transforms_page(TRANSFORMS) == transforms_page(TRANSFORMS[::-1])
    assert transforms_page(TRANSFORMS).endswith("\n")


def test_no_machine_path() -> None:
    assert "to/be/shown" not in transforms_page(TRANSFORMS)


def test_no_transforms() -> None:
    assert "# Transforms" in transforms_page([])


def test_a_transform_for_the_terminal() -> None:
    one = make(
        "worker_daemon",
        "Let workers start <b>processes</b>",
        "\nKeep `a_b` and _c_ and *d* & \\n as they are.\n\n    code\n",
        seed=["platform/3", "platform/4"],
        upstream=Upstream.inappropriate("a | b"),
        targets=TRANSFORMS[0].edits,
        examples=TRANSFORMS[0].examples,
        after=["another"],
        patch_lines=211,
    )
    assert (
        explain(one)
        == """\
worker_daemon: Let workers start <b>processes</b>

Keep `a_b` and _c_ and *d* & \\n as they are.

    code

Seed rows: platform/3, platform/4
vLLM: >=0.18,<0.20
Upstream status: Inappropriate [a | b]
Can be removed when: vLLM lets a platform choose
Comes after: another
Size: 30 lines; the monkey-patch: 211
Source: not/to/be/shown/worker_daemon.py

Edits:

  vllm/v1/executor/multiproc_executor.py, in WorkerProc.make_worker_process
    set `daemon=a | b` in `context.Process(...)`
    insert `x = 1
      if x:
          y()` after `z`
    have `import ascend_runtime.executor`
    lose `import os`

  vllm/v1/sample/ops/topk_topp_sampler.py
    replace `a` by `b`

Examples:

  vllm/v1/executor/multiproc_executor.py:

    -a = 1
    +a = 2
     b = '|'

  vllm/v1/executor/multiproc_executor.py, which it must not touch:

    x = \"\"\"```
    \"\"\"

  vllm/v1/sample/ops/topk_topp_sampler.py, which stays as it is:

    a = 1
    b = '|'
"""
    )


def test_our_own_transforms_for_the_terminal() -> None:
    for transform in load():
        text = explain(transform)
        assert text.startswith(f"{transform.id}: ")
        assert f"\nSource: rewriter/transforms/{transform.id}.py\n" in text
        assert "<!--" not in text and "](#" not in text and "](http" not in text
        assert "do not edit" not in text
