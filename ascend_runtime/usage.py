"""Reasoning tokens for the usage of chat completions, counted as they are generated.

A reasoning parser counts over a whole output. With usage in every chunk of a stream that would look
at each token again and again, so the rules of vLLM's own parsers are here as counters, which are
fed each token once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

#: The method by which a parser counts.
_METHOD: Final = "count_reasoning_tokens"


class _Counter(Protocol):
    def feed(self, ids: Sequence[int]) -> object: ...

    @property
    def total(self) -> int: ...


class _Output(Protocol):
    @property
    def token_ids(self) -> Sequence[int]: ...


def count_until(ids: Sequence[int], end_id: int | None) -> int:
    """Return how many token ids come before the first `end_id`: all if there is none.

    0 if `end_id` is None, for a vocabulary without an end of reasoning.
    """
    if end_id is None:
        return 0
    return next((number for number, token in enumerate(ids) if token == end_id), len(ids))


class UntilCounter:
    """Counts the tokens before the first `end_id`, over the pieces of one output."""

    def __init__(self, end_id: int | None) -> None:
        self.total = 0
        self._end_id = end_id
        self._ended = False

    def feed(self, ids: Sequence[int]) -> int:
        """Look at the next token ids; return how many tokens of reasoning there are so far."""
        if not self._ended:
            new = count_until(ids, self._end_id)
            self._ended = new < len(ids)
            self.total += new
        return self.total


class DepthCounter:
    """Counts the tokens between `start_id` and `end_id`, which may nest, over pieces of one output.

    Neither of the two counts itself, and an end without a start is ignored.
    """

    def __init__(self, start_id: int, end_id: int) -> None:
        self.total = 0
        self._start_id, self._end_id = start_id, end_id
        self._depth = 0

    def feed(self, ids: Sequence[int]) -> int:
        """Look at the next token ids; return how many tokens of reasoning there are so far."""
        for token in ids:
            if token == self._start_id:
                self._depth += 1
            elif token == self._end_id:
                self._depth = max(0, self._depth - 1)
            elif self._depth:
                self.total += 1
        return self.total


class _Recounter:
    """Asks the parser itself, about the whole output, each time that the total is wanted."""

    def __init__(self, parser: Any) -> None:
        self._count = getattr(parser, _METHOD)
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)

    @property
    def total(self) -> int:
        return int(self._count(self._ids))


def _rule(parser: object) -> str | None:
    """Return the class whose way of counting the parser has, as "module.Class".

    None if it is the default, which is always 0 and so says nothing.
    """
    for owner in type(parser).__mro__:
        if _METHOD in vars(owner):
            name = f"{owner.__module__}.{owner.__qualname__}"
            return None if name == "vllm.reasoning.abs_reasoning_parsers.ReasoningParser" else name
    return None


_DEPTH: Final = "vllm.reasoning.basic_parsers.BaseThinkingReasoningParser"
_UNTIL: Final = (
    "vllm.reasoning.minimax_m2_reasoning_parser.MiniMaxM2ReasoningParser",
    "vllm.reasoning.minimax_m2_reasoning_parser.MiniMaxM2AppendThinkReasoningParser",
)


def _counter(parser: Any, rule: str, prompt_ids: Sequence[int] | None) -> _Counter:
    if rule == _DEPTH:
        return DepthCounter(parser.start_token_id, parser.end_token_id)
    if rule in _UNTIL:
        # Such a parser takes an output to begin within the reasoning that the prompt has opened.
        ended = bool(prompt_ids) and parser.is_reasoning_end(prompt_ids)
        return UntilCounter(None if ended else parser.end_token_id)
    return _Recounter(parser)


class ReasoningUsage:
    """The reasoning tokens of a request, for each of its choices and for all of them.

    `parser` is the request's reasoning parser. Without one, or with one that cannot count, nothing
    is counted and there are no details.
    """

    def __init__(self, parser: object | None, choices: int) -> None:
        self._parser = parser
        self._rule = None if parser is None else _rule(parser)
        self._counters: list[_Counter | None] = [None] * choices
        self._tokens = [0] * choices

    def feed(self, choice: int, token_ids: Sequence[int], prompt_ids: Sequence[int] | None) -> None:
        """Take note of new tokens of a choice. `prompt_ids` are those of the prompt, if known."""
        if self._rule is None:
            return
        counter = self._counters[choice]
        if counter is None:
            counter = self._counters[choice] = _counter(self._parser, self._rule, prompt_ids)
        counter.feed(token_ids)
        self._tokens[choice] += len(token_ids)

    def details(self, choice: int | None = None) -> dict[str, dict[str, int]]:
        """Return the keyword `completion_tokens_details` for `UsageInfo`, or no keyword.

        It is for one choice, or by default for the sum of all. The count is at least 0 and at most
        the number of tokens fed. No keyword is not the same as None: a field that was given, if
        only as None, appears in the chunks of a stream.
        """
        if self._rule is None:
            return {}
        chosen = slice(None) if choice is None else slice(choice, choice + 1)
        count = sum(counter.total for counter in self._counters[chosen] if counter is not None)
        count = max(0, min(count, sum(self._tokens[chosen])))
        return {"completion_tokens_details": {"reasoning_tokens": count}}


def reasoning_details(
    parser: object | None, prompt_ids: Sequence[int] | None, outputs: Iterable[_Output]
) -> dict[str, dict[str, int]]:
    """Return what `ReasoningUsage.details` gives for the sum of complete outputs."""
    listed = list(outputs)
    usage = ReasoningUsage(parser, len(listed))
    for choice, output in enumerate(listed):
        usage.feed(choice, output.token_ids, prompt_ids)
    return usage.details()
