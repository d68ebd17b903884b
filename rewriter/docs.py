"""The text of `docs/transforms.md` and of `--explain`, made from the transforms themselves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewriter import diffs
from rewriter.transform import Example, Transform

if TYPE_CHECKING:
    from rewriter.edits import Target

_HEAD = """\
<!-- Made by the program from rewriter/transforms/; do not edit by hand. -->

# Transforms

Each transform is one change to vLLM, one file in `rewriter/transforms/`. "Seed" names the rows of
the monkey-patch table that it replaces; "Upstream" says where the change stands with vLLM, in the
words of Yocto's Upstream-Status.
"""
_OURS = Path(__file__).resolve().parent / "transforms"
_INDENTED = re.compile(r"( {4}|\t)")
_CODE_SPAN = re.compile(r"(`+)(?:.|\n)*?\1(?!`)")
# Characters that would turn prose into emphasis, HTML or an escape; single underscores inside words
# are safe.
_SPECIAL = re.compile(r"[\\*<]|__+|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_BLOCK_START = re.compile(r"(#{1,6}(?=\s)|>|[-+](?=[-+]*$)|=+$|~~~)")


def transforms_page(transforms: Sequence[Transform]) -> str:
    """Return the page: an index of all transforms, then a section for each, sorted by id."""
    ordered = sorted(transforms, key=lambda transform: transform.id)
    parts = [_HEAD, _index(ordered)]
    parts += [_section(transform) for transform in ordered]
    return "\n".join(parts)


def explain(transform: Transform) -> str:
    """Return all about one transform as plain text, for a terminal."""
    facts = [
        ("Seed rows", ", ".join(transform.seeds) or "none"),
        ("vLLM", transform.vllm),
        ("Upstream status", str(transform.upstream)),
        ("Can be removed when", " ".join(transform.remove_when.split())),
        ("Comes after", ", ".join(transform.after)),
        ("Size", _size(transform)),
        ("Source", _source(transform)),
    ]
    parts = [
        f"{transform.id}: {transform.title}",
        transform.body.rstrip(),
        "\n".join(f"{name}: {value}" for name, value in facts if value),
        "Edits:",
        *(_plain_target(target) for target in transform.edits),
        *(["Examples:"] if transform.examples else []),
        *(_plain_example(example) for example in transform.examples),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain_target(target: Target) -> str:
    lines = [f"  {target.path}{', in ' + target.scope if target.scope else ''}"]
    # The first line of an edit stands out, as its code may have lines of its own.
    lines += [textwrap.indent(edit.describe(), " " * 6)[2:] for edit in target.edits]
    lines += [f"    have `{statement}`" for statement in target.imports]
    lines += [f"    lose `{statement}`" for statement in target.dropped]
    return "\n".join(lines)


def _plain_example(example: Example) -> str:
    remark, text, _ = _example_parts(example)
    lines = [f"    {line}".rstrip() for line in text.rstrip().splitlines()]
    return "\n".join([f"  {example.path}{remark}:", "", *lines])


def _source(transform: Transform) -> str:
    """Return where a transform is written: ours below the checkout, others as they were given."""
    path = transform.source
    if path is None:
        return ""
    return f"rewriter/transforms/{path.name}" if path.resolve().parent == _OURS else str(path)


def _size(transform: Transform) -> str:
    size = f"{transform.source_lines} lines"
    if transform.monkey_patch_lines:
        size += f"; the monkey-patch: {transform.monkey_patch_lines}"
    return size


def _index(transforms: Sequence[Transform]) -> str:
    rows = [
        (
            f"[`{transform.id}`](#{transform.id})",
            ", ".join(transform.seeds) or "-",
            transform.upstream.status,
            _code(transform.vllm),
            "<br>".join(map(_code, transform.paths)),
        )
        for transform in transforms
    ]
    return _table(("Transform", "Seed", "Upstream", "vLLM", "Files"), rows)


def _section(transform: Transform) -> str:
    facts = [
        ("Seed rows", ", ".join(transform.seeds) or "none"),
        ("vLLM", _code(transform.vllm)),
        ("Upstream status", _prose(str(transform.upstream))),
        ("Can be removed when", _prose(" ".join(transform.remove_when.split()))),
    ]
    if transform.after:
        links = (f"[`{id}`](#{id})" for id in transform.after)
        facts.append(("Comes after", ", ".join(links)))
    facts.append(("Size", _size(transform)))
    parts = [
        f"## {transform.id}",
        f"**{_prose(transform.title)}**",
        _paragraphs(transform.body),
        "\n".join(f"* {name}: {value}" for name, value in facts)
        + f"\n* Source: [`{transform.id}.py`](../rewriter/transforms/{transform.id}.py)",
        "### Edits",
        "\n".join(_edits(transform)),
    ]
    if transform.examples:
        parts.append("### Examples")
        parts += [_example(example) for example in transform.examples]
    return "\n\n".join(part for part in parts if part) + "\n"


def _edits(transform: Transform) -> Iterable[str]:
    for target in transform.edits:
        scope = f", in {_code(target.scope)}" if target.scope else ""
        yield f"* {_code(target.path)}{scope}"
        for edit in target.edits:
            yield from _bullet(edit.describe())
        for statement in target.imports:
            yield f"    * have {_code(statement)}"
        for statement in target.dropped:
            yield f"    * lose {_code(statement)}"


def _bullet(text: str) -> Iterable[str]:
    """Yield a nested list item; code of several lines becomes a block inside it."""
    at, lead = 0, "    * "
    for span in _CODE_SPAN.finditer(text):
        if "\n" not in span[0]:
            continue
        before = " ".join(text[at : span.start()].split())
        if before:
            yield lead + _prose(before)
            lead = "      "
        yield ""
        yield from (
            f"      {line}".rstrip() for line in _fence(span[0].strip("`"), "python").splitlines()
        )
        yield ""
        at = span.end()
    rest = " ".join(text[at:].split())
    if rest:
        yield lead + _prose(rest)


def _example(example: Example) -> str:
    remark, text, language = _example_parts(example)
    return f"{_code(example.path)}{remark}:\n\n{_fence(text, language)}"


def _example_parts(example: Example) -> tuple[str, str, str]:
    """Return what is special about an example, its text, and the language of that."""
    if example.after is None:
        return ", which it must not touch", example.before, "python"
    old, new = (diffs.split(text.encode()) for text in (example.before, example.after))
    # The whole example, not three lines around each change.
    hunks = diffs.hunks(old, new, context=max(len(old), len(new)))
    if not hunks:
        return ", which stays as it is", example.before, "python"
    lines = [line for hunk in hunks for line in diffs.hunk_lines(hunk, old, new)[1:]]
    return "", b"".join(lines).decode(), "diff"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell, also inside code, is escaped."""
    lines = [head, ["---"] * len(head)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code(text: str) -> str:
    """Return text as a code span that its own backticks cannot end."""
    text = " ".join(text.split())
    ticks = "`" * (_longest_ticks(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _fence(text: str, language: str) -> str:
    ticks = "`" * max(3, _longest_ticks(text) + 1)
    return f"{ticks}{language}\n{text.rstrip(chr(10))}\n{ticks}"


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def _paragraphs(body: str) -> str:
    """Return a docstring as Markdown: indented blocks are code, the rest is prose and lists."""
    blocks = re.split(r"\n[ \t]*\n", body.strip("\n"))
    done = []
    for block in blocks:
        lines = [line.rstrip() for line in block.strip("\n").splitlines()]
        if all(_INDENTED.match(line) for line in lines):
            done.append("\n".join(lines))
        else:
            done.append("\n".join(map(_guarded, _prose("\n".join(lines)).splitlines())))
    return "\n\n".join(done)


def _guarded(line: str) -> str:
    """Keep a line of prose from becoming a heading, a quotation or a rule."""
    return _BLOCK_START.sub(r"\\\1", line, count=1) if _BLOCK_START.match(line) else line


def _prose(text: str) -> str:
    """Escape Markdown outside the code spans that the text has in backticks."""
    out, at = [], 0
    for span in _CODE_SPAN.finditer(text):
        out += [_escaped(text[at : span.start()]), span[0]]
        at = span.end()
    return "".join([*out, _escaped(text[at:])])


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda match: "".join("\\" + char for char in match[0]), text)


if __name__ == "__main__":
    # python -m rewriter.docs > docs/transforms.md
    from rewriter.catalog import load

    print(transforms_page(load()), end="")
