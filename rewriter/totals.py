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
    `lines_monkey_patch` count the applied transforms only, as `added` and `removed` do, so that the
    three can be compared.
    """
    known = {transform.id: transform for transform in transforms}
    applied = [r for r in rewritten.results if r.outcome is Outcome.APPLIED]
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
        "lines_transforms": sum(known[result.id].source_lines for result in applied),
        "lines_monkey_patch": sum(known[result.id].monkey_patch_lines for result in applied),
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
