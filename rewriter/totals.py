"""Sums over the outcomes of a build, shared by the reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewriter.outcome import Outcome, Result
from rewriter.rewrite import Rewritten
from rewriter.transform import Transform


def by_id(rewritten: Rewritten) -> list[Result]:
    """Return the results in the order of their ids."""
    return sorted(rewritten.results, key=lambda result: result.id)


def totals(rewritten: Rewritten, transforms: Sequence[Transform]) -> dict[str, Any]:
    """Return sums over all transforms.

    `outcomes` has every outcome, also those that did not occur. `lines_transforms` and
    `lines_monkey_patch` count, so that they can be compared, only applied transforms that replace a
    monkey-patch of known size; one that several transforms replace together counts once.
    """
    known = {transform.id: transform for transform in transforms}
    applied = [r for r in rewritten.results if r.outcome is Outcome.APPLIED]
    measured = [t for r in applied if (t := known[r.id]).monkey_patch_lines]
    changed = [file for result in applied for file in result.files]
    return {
        "transforms": len(rewritten.results),
        "outcomes": {
            outcome.value: sum(result.outcome is outcome for result in rewritten.results)
            for outcome in Outcome
        },
        "files": len(rewritten.files),
        "edits": sum(file.edits for file in changed),
        "added": sum(file.added for file in changed),
        "removed": sum(file.removed for file in changed),
        "lines_transforms": sum(transform.source_lines for transform in measured),
        "lines_monkey_patch": sum({t.seeds: t.monkey_patch_lines for t in measured}.values()),
    }


def summary(rewritten: Rewritten) -> str:
    """Return the totals as one line: how many transforms, and how many of each outcome."""
    number = len(rewritten.results)
    counts = [
        f"{count} {outcome.value}"
        for outcome in Outcome
        if (count := sum(result.outcome is outcome for result in rewritten.results))
    ]
    return f"{number} transform{'s' * (number != 1)}: {', '.join(counts) or 'nothing to do'}"
