"""P9: the reasoning tokens in the usage of chat completions, streamed and not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from serving_kit import Script, chunks_of, full, serving, stream
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.reasoning import ReasoningParser
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.reasoning.minimax_m2_reasoning_parser import MiniMaxM2ReasoningParser

START, END = 7, 8
OPEN, CLOSED = (1, START), (START, END)
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
M2 = "minimax_m2"
WORKED = [[10], [11, END], [12], [13]]


def script(*choices: Sequence[Sequence[int]], prompt: Sequence[int] = OPEN, **more: int) -> Script:
    """Chunks of these ids for each choice, the choices in turn."""
    text = {START: "<think>", END: "</think>"}
    streams = [
        chunks_of([("".join(text.get(i, "x") for i in ids), ids) for ids in chunks], choice=number)
        for number, chunks in enumerate(choices)
    ]
    turns = max(len(chunks) for chunks in streams)
    in_turn = [c[turn] for turn in range(turns) for c in streams if turn < len(c)]
    return Script(in_turn, prompt_ids=prompt, **more)


def usages(parser: str | type | None, played: Script, **fields: object) -> list[dict]:
    """The usage of every chunk of a stream, those without delta included."""
    chat = serving(reasoning_parser=parser if isinstance(parser, str) else None)
    if isinstance(parser, type):
        chat.reasoning_parser_cls = parser
    # With token ids wanted, a chunk is sent even where the parser has nothing to say.
    fields = {"stream_options": CONTINUOUS, "return_token_ids": True} | fields
    return [chunk["usage"] for chunk in stream(chat, played, **fields)]


def counts(told: list[dict]) -> list[int | None]:
    return [usage.get("completion_tokens_details", {}).get("reasoning_tokens") for usage in told]


CASES = {
    "as it goes": (M2, [WORKED], OPEN, [0, 1, 2, 2, 2, 2]),
    "prompt without tags": (M2, [WORKED], (1, 2), [0, 1, 2, 2, 2, 2]),
    "no end": (M2, [[[10], [11, 12]]], OPEN, [0, 1, 3, 3]),
    "end at once": (M2, [[[END], [12]]], OPEN, [0, 0, 0, 0]),
    "two ends": (M2, [[[10, END, 11], [END, 12]]], OPEN, [0, 1, 1, 1]),
    "start written": (M2, [[[START, 10], [END, 12]]], OPEN, [0, 2, 2, 2]),
    "closed by the prompt": (M2, [[[12], [13]]], CLOSED, [0, 0, 0, 0]),
    "think appended": ("minimax_m2_append_think", [WORKED], OPEN, [0, 1, 2, 2, 2, 2]),
    "start in the prompt": ("deepseek_r1", [WORKED], OPEN, [0, 0, 0, 0, 0, 0]),
    "tags": ("qwen3", [[[START, 10], [11, END], [12]]], (1, 2), [0, 1, 2, 2, 2]),
    "past tags": ("qwen3", [[[START, 10], [11, END], [12]]], CLOSED, [0, 1, 2, 2, 2]),
    "two choices": (
        M2,
        [[[10, 11, END], [12, 13]], [[10, END], [12]]],
        OPEN,
        [0, 0, 2, 1, 2, 1, 3],
    ),
}


@pytest.mark.parametrize(("parser", "ids", "prompt", "expected"), CASES.values(), ids=CASES)
def test_counts(parser, ids, prompt, expected) -> None:
    """Of each chunk for its choice, and of the last for all; not streamed, of the metadata too."""
    played = script(*ids, prompt=prompt)
    told = usages(parser, played, n=len(ids))
    assert counts(told) == expected
    tokens = sum(len(chunk) for chunks in ids for chunk in chunks)
    final = {
        "prompt_tokens": 2,
        "total_tokens": 2 + tokens,
        "completion_tokens": tokens,
        "completion_tokens_details": {"reasoning_tokens": expected[-1]},
    }
    assert told[-1] == final
    metadata: list = []
    chat = serving(reasoning_parser=parser)
    stream(chat, played, metadata, n=len(ids))
    response = full(chat, played, metadata, n=len(ids))
    infos = [response.usage, *[m.final_usage_info for m in metadata]]
    assert [info.model_dump(exclude_none=True) for info in infos] == [final] * 3


def test_chunks_say_how_many_tokens_their_choice_has() -> None:
    told = usages(M2, script(WORKED))
    assert [usage["completion_tokens"] for usage in told] == [0, 1, 3, 4, 5, 5]
    assert [usage["total_tokens"] for usage in told] == [2, 3, 5, 6, 7, 7]


class Echo(OpenAIServingChat):
    """Answers a conversation whose last message is the assistant's."""

    def chat_completion_stream_generator(self, **arguments: object) -> AsyncIterator[str]:
        conversation = [{"role": "assistant", "content": "hello"}]
        return super().chat_completion_stream_generator(
            **arguments | {"conversation": conversation}
        )


def test_echoed_message_has_details_too() -> None:
    chat = serving(reasoning_parser=M2, kind=Echo)
    role, echo, *_ = stream(chat, script(WORKED), echo=True, stream_options=CONTINUOUS)
    assert echo["choices"][0]["delta"] == {"content": "hello"}
    assert role["usage"] == echo["usage"]
    assert echo["usage"] == {
        "prompt_tokens": 2,
        "total_tokens": 2,
        "completion_tokens": 0,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("parser", [None, "granite"])
def test_no_details_without_a_parser_that_counts(parser) -> None:
    told = usages(parser, script(WORKED))
    assert counts(told) == [None] * len(told)
    assert all("completion_tokens_details" not in usage for usage in told)
    assert full(serving(reasoning_parser=parser), script(WORKED)).usage.model_dump() == {
        "prompt_tokens": 2,
        "total_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_cached_tokens_are_told_but_not_in_the_metadata_of_a_stream() -> None:
    metadata: list = []
    chat = serving(reasoning_parser=M2, enable_prompt_tokens_details=True)
    played = script(WORKED, cached_tokens=1)
    *_, last = stream(chat, played, metadata, stream_options={"include_usage": True})
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert metadata[0].final_usage_info.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "total_tokens": 7,
        "completion_tokens": 5,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert full(chat, played).usage.prompt_tokens_details.cached_tokens == 1


class TooMany(MiniMaxM2ReasoningParser):
    """Counts more than there is."""

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return 10


class TooFew(TooMany):
    """Counts less than nothing."""

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return -1


@pytest.mark.parametrize(("parser", "expected"), [(TooMany, [0, 1, 3, 3]), (TooFew, [0, 0, 0, 0])])
def test_count_is_clamped_to_the_completion(parser, expected) -> None:
    assert counts(usages(parser, script([[10], [11, 12]]))) == expected


@pytest.mark.parametrize("parser", [M2, "minimax_m2_append_think", "qwen3", "deepseek_r1"])
def test_no_token_is_counted_twice(monkeypatch, parser) -> None:
    """The parser, which counts whole outputs, is not asked, however many chunks there are."""
    chat = serving(reasoning_parser=parser)
    owners = [c for c in chat.reasoning_parser_cls.__mro__ if "count_reasoning_tokens" in vars(c)]

    def whole_output(self: object, token_ids: Sequence[int]) -> int:
        raise AssertionError("all tokens are looked at again")

    whole_output.__qualname__ = owners[0].count_reasoning_tokens.__qualname__
    monkeypatch.setattr(owners[0], "count_reasoning_tokens", whole_output)
    assert counts(usages(parser, script([[10]] * 9)))[-1] is not None


def test_decision_is_the_class_s() -> None:
    """A parser without a counter says nothing, one that inherits a counter says what it counts."""
    silent = serving(reasoning_parser="granite").reasoning_parser_cls
    assert silent.count_reasoning_tokens is ReasoningParser.count_reasoning_tokens
    inherits = serving(reasoning_parser="deepseek_r1").reasoning_parser_cls
    base = BaseThinkingReasoningParser.count_reasoning_tokens
    assert inherits.count_reasoning_tokens is base
