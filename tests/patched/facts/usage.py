"""The usage of chat completions."""

from __future__ import annotations

from facts import fact


@fact
def minimax_reasoning_count() -> bool:
    from test_minimax_count import parser

    return parser("minimax_m2").count_reasoning_tokens([10, 11, 2, 20]) == 2


@fact
def chat_reasoning_usage() -> bool:
    from test_reasoning_usage import M2, WORKED, counts, script, usages

    return counts(usages(M2, script(WORKED))) == [0, 1, 2, 2, 2, 2]
