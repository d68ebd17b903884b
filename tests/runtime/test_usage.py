"""Counting reasoning tokens in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from ascend_runtime.usage import (
    DepthCounter,
    ReasoningUsage,
    UntilCounter,
    count_until,
    reasoning_details,
)

START, END = 7, 8
BASE = ("vllm.reasoning.abs_reasoning_parsers", "ReasoningParser")
DEPTH = ("vllm.reasoning.basic_parsers", "BaseThinkingReasoningParser")
UNTIL = ("vllm.reasoning.minimax_m2_reasoning_parser", "MiniMaxM2ReasoningParser")
APPEND = ("vllm.reasoning.minimax_m2_reasoning_parser", "MiniMaxM2AppendThinkReasoningParser")


def details(count: int) -> dict:
    return {"completion_tokens_details": {"reasoning_tokens": count}}


def must_not_count(self: object, ids: Sequence[int]) -> int:
    raise AssertionError("the whole output is looked at again")


def count_nothing(self: object, ids: Sequence[int]) -> int:
    return 0


def named(name: tuple[str, str], *bases: type, count: object = must_not_count) -> type:
    """Make a class that counts, with the module and the name of one of vLLM's."""
    module, own = name
    return type(own, bases, {"__module__": module, "count_reasoning_tokens": count})


Base = named(BASE, count=count_nothing)


def parser(kind: type, end_id: int | None = END) -> object:
    made = kind()
    made.start_token_id, made.end_token_id = START, end_id
    made.is_reasoning_end = lambda ids: [i for i in ids if i in (START, END)][-1:] == [END]
    return made


@pytest.mark.parametrize(
    ("ids", "end_id", "count"),
    [
        ([10, 11, 2, 20], 2, 2),
        ([10, 11, 20], 2, 3),
        ([2, 20], 2, 0),
        ([10, 2, 11, 2], 2, 1),
        ([], 2, 0),
        ([10, 11], None, 0),
    ],
)
def test_count_until(ids: list[int], end_id: int | None, count: int) -> None:
    assert count_until(ids, end_id) == count
    assert count_until(tuple(ids), end_id) == count
    counter = UntilCounter(end_id)
    assert [counter.feed([token]) for token in ids][-1:] == [count][: len(ids)]
    assert UntilCounter(end_id).feed(ids) == count


def test_until_counter_tells_the_total_so_far() -> None:
    counter = UntilCounter(END)
    assert [counter.feed(ids) for ids in ([10], [11, 8], [12], [13])] == [1, 2, 2, 2]


class Unread(list):
    """Ids that must not be looked at."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("looked at")


def test_until_counter_looks_at_nothing_after_the_end() -> None:
    counter = UntilCounter(END)
    counter.feed([10, END])
    assert counter.feed(Unread([11])) == 1


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        ([7, 10, 11, 8, 12], 2),
        ([10, 11, 8, 12], 0),  # an end without a start
        ([7, 10, 7, 11, 8, 12, 8, 13], 3),  # nested
        ([8, 7, 10], 1),
        ([7, 10, 8, 11, 7, 12], 2),
    ],
)
def test_depth_counter(ids: list[int], count: int) -> None:
    assert DepthCounter(START, END).feed(ids) == count
    in_pieces = DepthCounter(START, END)
    assert [in_pieces.feed([token]) for token in ids][-1] == count


@pytest.mark.parametrize("name", [UNTIL, APPEND])
def test_minimax_counts_until_the_end(name: tuple[str, str]) -> None:
    usage = ReasoningUsage(parser(named(name, Base)), 2)
    assert usage.details(0) == details(0)
    seen = []
    for choice, ids in ((0, [10]), (1, [9]), (0, [11, 8]), (0, [12])):
        usage.feed(choice, ids, [1, START])
        seen.append((usage.details(choice), usage.details()))
    assert seen == [
        (details(1), details(1)),
        (details(1), details(2)),
        (details(2), details(3)),
        (details(2), details(3)),
    ]


@pytest.mark.parametrize(
    ("prompt", "count"), [([START, END], 0), ([START, END, START], 2), ([], 2), (None, 2)]
)
def test_minimax_counts_nothing_if_the_prompt_ended_it(
    prompt: list[int] | None, count: int
) -> None:
    usage = ReasoningUsage(parser(named(UNTIL, Base)), 1)
    usage.feed(0, [10, 11], prompt)
    assert usage.details() == usage.details(0) == details(count)


def test_a_vocabulary_without_an_end_has_no_reasoning() -> None:
    usage = ReasoningUsage(parser(named(APPEND, Base), end_id=None), 1)
    usage.feed(0, [10, 11], None)
    assert usage.details() == details(0)


def test_tags_count_whatever_the_prompt_ended() -> None:
    """Past turns end their reasoning; the model opens its own."""
    inherits = type("Qwen3ReasoningParser", (named(DEPTH, Base),), {})
    usage = ReasoningUsage(parser(inherits), 1)
    usage.feed(0, [START, 10], [START, END])
    usage.feed(0, [11, END, 12], [START, END])
    assert usage.details() == details(2)


def test_a_way_of_counting_of_its_own_is_asked_when_it_is_wanted() -> None:
    asked: list[list[int]] = []

    def count(self: object, ids: Sequence[int]) -> int:
        asked.append(list(ids))
        return len([i for i in ids if i > 10])

    own = named(("a.plugin", "MiniMaxM2ReasoningParser"), named(UNTIL, Base), count=count)
    usage = ReasoningUsage(parser(own), 1)
    for ids in ([10], (11, 12), [13]):
        usage.feed(0, ids, None)
    assert asked == []
    assert usage.details() == details(3)
    assert asked == [[10, 11, 12, 13]]


@pytest.mark.parametrize(("counted", "told"), [(10, 3), (3, 3), (2, 2), (-1, 0)])
def test_count_is_clamped_to_the_tokens(counted: int, told: int) -> None:
    own = named(("a.plugin", "Odd"), Base, count=lambda self, ids: counted)
    usage = ReasoningUsage(parser(own), 1)
    usage.feed(0, [1, 2, 3], None)
    assert usage.details(0) == usage.details() == details(told)


class Inherits(Base):  # type: ignore[misc, valid-type]
    """A parser that cannot count."""


@pytest.mark.parametrize("who", [None, Inherits(), SimpleNamespace()])
def test_no_details_without_a_parser_that_counts(who: object) -> None:
    usage = ReasoningUsage(who, 1)
    usage.feed(0, Unread([1]), [1])
    assert usage.details() == usage.details(0) == {}
    assert reasoning_details(who, [1], [SimpleNamespace(token_ids=[1])]) == {}


def test_details_of_complete_outputs() -> None:
    outputs = [SimpleNamespace(token_ids=ids) for ids in ([10, 11, 8, 12, 13], (10, 8, 12))]
    minimax = parser(named(UNTIL, Base))
    assert reasoning_details(minimax, [1, 2], outputs) == details(3)
    assert reasoning_details(minimax, [START, END], outputs) == details(0)
