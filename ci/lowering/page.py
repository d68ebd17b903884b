"""The tables of docs/kernels_on_ascend.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ascend_runtime.operations import OPERATIONS
from ci.lowering.tools import UB_BITS

#: Plans of one compiler differ by some percent from run to run.
NOISE = 0.1

Row = dict[str, Any]


def fill(page: str, tables: dict[str, str]) -> str:
    """Put each table between `<!-- name -->` and `<!-- end of name -->`, or raise ValueError."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page has no place for a table: {begin.strip()} ... {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return page


def ours(rows: Iterable[Row]) -> str:
    """Our kernels, a line for each operation."""
    lines = [("operation", "launches", "that fit", "largest plan, bits", "of the buffer")]
    for (operation,), group in _groups(rows, lambda row: (row["operation"],)):
        most = max((row["ub_bits"] or 0 for row in group), default=0)
        fit = sum(row["stage"] == "fits" for row in group)
        lines.append((f"`{operation}`", len(group), fit, f"{most:,}", f"{most / UB_BITS:.0%}"))
    return _table(lines)


def vllms(rows: Iterable[Row]) -> str:
    """vLLM's kernels, a line for each; rows of ours are left out."""
    lines = [("operation", "vLLM's kernel", "that fit", "what stops the others", "on an NPU")]
    others = [row for row in rows if row["whose"] != "ours"]
    key = ("operation", "kernel", "whose")
    for (operation, kernel, whose), group in _groups(
        others, lambda row: tuple(row[k] for k in key)
    ):
        fit = sum(row["stage"] == "fits" for row in group)
        edited = whose != "vLLM's"
        again = any(
            row["whose"] != whose and row["operation"] == operation and row["kernel"] == kernel
            for row in others
        )
        lines.append(
            (
                f"`{operation}`",
                f"`{kernel}`{', edited' if edited else ''}" if kernel else "",
                f"{fit} of {len(group)}",
                _reasons(group),
                "as edited" if edited else "edited" if again else _instead(operation),
            )
        )
    return _table(lines)


def versions(tables: dict[str, list[Row]]) -> str:
    """Our kernels with several versions of ascendnpu-ir, compared with the first of them."""
    more, less = f"plans over {NOISE:.0%} larger", f"over {NOISE:.0%} smaller"
    lines = [("ascendnpu-ir", "that fit", more, "the largest", less, "the largest")]
    base: dict[tuple[str, ...], int] = {}
    for version, rows in tables.items():
        fit = sum(row["stage"] == "fits" for row in rows)
        plans = _plans(rows)
        base = base or plans
        changes = [(bits - base[key], key) for key, bits in plans.items() if key in base]
        cells = []
        for sign in (1, -1):
            real = [(change * sign, key) for change, key in changes]
            real = [(change, key) for change, key in real if change > NOISE * base[key]]
            cells.append(str(len(real)))
            key = max(real)[1] if real else None
            cells.append(f"{base[key]:,} to {plans[key]:,}: `{key[2]}`, {key[1]}" if key else "")
        lines.append((version, f"{fit} of {len(rows)}", *cells))
    return _table(lines)


def _plans(rows: Iterable[Row]) -> dict[tuple[str, ...], int]:
    plans: dict[tuple[str, ...], int] = {}
    for row in rows:
        if row["ub_bits"] is not None:
            key = (row["operation"], row["label"], row["kernel"])
            plans[key] = max(plans.get(key, 0), row["ub_bits"])
    return plans


def _reasons(rows: Iterable[Row]) -> str:
    """Say in a few words why launches do not get to the end."""
    reasons, most = [], 0
    for row in rows:
        overflow = re.search(r"ub overflow, requires (\d+) bits", row["why"])
        if overflow:
            most = max(most, int(overflow[1]))
        elif row["why"]:
            why = row["why"].partition(" | ")[0].removeprefix("error: ")
            reasons.append(re.sub(r"\s+", " ", why).strip().replace("|", "\\|")[:160])
    if most:
        reasons.append(f"up to {most:,} bits are needed")
    return "; ".join(dict.fromkeys(reasons))


def _instead(operation: str) -> str:
    if operation not in OPERATIONS:
        return "as it is"
    kinds = {way.kind for way in OPERATIONS[operation].implementations}
    if "kernel" in kinds:
        return "our kernel"
    return "an operator of Huawei's, or plain torch" if "vendor" in kinds else "plain torch"


def _groups(
    rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], list[Row]]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.items())


def _table(lines: list[tuple[Any, ...]]) -> str:
    cells = ["| " + " | ".join(map(str, line)) + " |\n" for line in lines]
    return cells[0] + "| " + " | ".join("---" for _ in lines[0]) + " |\n" + "".join(cells[1:])
