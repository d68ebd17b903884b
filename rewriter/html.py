"""The report as one self-contained page: no request goes out, and it works without scripts too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rewriter import __version__, diffs
from rewriter.base import Base
from rewriter.outcome import Outcome, Result
from rewriter.rewrite import Rewritten
from rewriter.series import prerequisites
from rewriter.sidebyside import Block, blocks
from rewriter.totals import by_id, summary, totals
from rewriter.transform import Transform

Originals = Callable[[str], bytes]

_INLINE = re.compile(r"`+([^`\n](?:[^`]|\n)*?)`+|(https?://[^\s<>\"')\]]*[\w/])")
_OPEN_UP_TO = 120  # changed lines; a larger diff starts folded

_MEANING = {
    Outcome.APPLIED: "the edit was made",
    Outcome.ALREADY_UPSTREAM: "this vLLM has the change already",
    Outcome.NOT_APPLICABLE: "not meant for this version of vLLM",
    Outcome.DRIFTED: "the code to edit is not as expected",
    Outcome.TARGET_MISSING: "the file or function to edit is not there",
    Outcome.CONFLICT: "two transforms edit the same code",
}


@dataclass(frozen=True)
class FileView:
    """One file of one transform: its counts and its hunks."""

    path: str
    added: int
    removed: int
    blocks: list[Block]


def html(
    base: Base,
    rewritten: Rewritten,
    transforms: Sequence[Transform],
    originals: Originals,
    artifacts: Mapping[str, str],
) -> str:
    """Return the page. `originals` gives a file of the pristine base by its path.

    Everything that comes from the base or from a transform is escaped. Failed transforms come
    first, the others by id.
    """
    known = {transform.id: transform for transform in transforms}
    ordered = sorted(by_id(rewritten), key=lambda result: not result.outcome.failed)
    deltas = dict(_deltas(rewritten, known, originals))
    entries = [_entry(result, known[result.id], deltas.get(result.id, [])) for result in ordered]
    environment = Environment(
        loader=PackageLoader("rewriter"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda number: f"{number:,}"
    environment.filters["prose"] = prose
    environment.filters["inline"] = _inline
    return environment.get_template("report.html.j2").render(
        base=base,
        version=__version__,
        totals=totals(rewritten, transforms),
        summary=summary(rewritten),
        failed=[entry for entry in entries if entry["result"].outcome.failed],
        entries=entries,
        outcomes=_used_outcomes(rewritten),
        meaning=_MEANING,
        artifacts=sorted(artifacts.items()),
    )


def _used_outcomes(rewritten: Rewritten) -> list[tuple[Outcome, int]]:
    counts = [
        (outcome, sum(result.outcome is outcome for result in rewritten.results))
        for outcome in Outcome
    ]
    return [(outcome, count) for outcome, count in counts if count]


def _entry(result: Result, transform: Transform, views: list[FileView]) -> dict[str, Any]:
    added = sum(file.added for file in result.files)
    removed = sum(file.removed for file in result.files)
    changed = added + removed
    sizes = [
        ("changed in vLLM", "vllm", changed),
        ("this transform", "transform", transform.source_lines),
        ("the monkey-patch", "patch", transform.monkey_patch_lines),
    ]
    most = max(size for _, _, size in sizes) or 1
    paths = [file.path for file in result.files] or list(transform.paths)
    search = [result.id, transform.title, *transform.seeds, *paths, transform.upstream.status]
    return {
        "result": result,
        "transform": transform,
        "views": views,
        "open": changed <= _OPEN_UP_TO,
        "added": added,
        "removed": removed,
        "sizes": [
            (label, key, size, round(100 * size / most, 1))
            for label, key, size in sizes
            if changed or transform.monkey_patch_lines
        ],
        "ratios": [
            (label, f"{changed / size:.2f}") for label, _, size in sizes[1:] if changed and size
        ],
        "search": " ".join(search).casefold(),
    }


def _deltas(
    rewritten: Rewritten, known: Mapping[str, Transform], originals: Originals
) -> Iterator[tuple[str, list[FileView]]]:
    """Yield what each applied transform does, without what others do.

    That is its edit of the pristine base. One that builds on others is shown on top of those, as in
    the series of patches.
    """
    now: dict[str, bytes] = {}
    for id, files in rewritten.series:
        builds_on = prerequisites(known[id], known, rewritten.alone)
        after = files if builds_on else rewritten.alone.get(id, files)
        views = []
        for path in sorted(after):
            before = now[path] if builds_on and path in now else _read(originals, path)
            if before != after[path]:
                counts = diffs.count(before, after[path])
                views.append(FileView(path, *counts, blocks(path, before, after[path])))
        now.update(files)
        yield id, views


def _read(originals: Originals, path: str) -> bytes | None:
    try:
        return originals(path)
    except FileNotFoundError:
        return None


def prose(text: str) -> Markup:
    """Return a docstring as HTML: paragraphs, lists, indented code, `code` and addresses."""
    out = []
    for block in re.split(r"\n[ \t]*\n", text.strip("\n")):
        lines = [line.rstrip() for line in block.strip("\n").splitlines()]
        if not lines:
            continue
        if all(line.startswith(("    ", "\t")) for line in lines):
            code = "\n".join(line.removeprefix("    ") for line in lines)
            out.append(Markup("<pre>{}</pre>").format(code))
        elif lines[0].startswith(("* ", "- ")):
            items = re.split(r"^[*-] +", "\n".join(lines), flags=re.MULTILINE)[1:]
            html = Markup("").join(Markup("<li>{}</li>").format(_inline(item)) for item in items)
            out.append(Markup("<ul>{}</ul>").format(html))
        else:
            out.append(Markup("<p>{}</p>").format(_inline("\n".join(lines))))
    return Markup("\n").join(out)


def _inline(text: str) -> Markup:
    out, at = [], 0
    for match in _INLINE.finditer(text):
        out.append(escape(text[at : match.start()]))
        if match[1] is not None:
            out.append(Markup("<code>{}</code>").format(match[1]))
        else:
            out.append(Markup('<a href="{0}" rel="noreferrer">{0}</a>').format(match[2]))
        at = match.end()
    return Markup("").join([*out, escape(text[at:])])
