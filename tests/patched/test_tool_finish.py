"""P10b: the last message of a stream gets what its call lacks, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import pytest
from serving_kit import Chunk, chunks_of, full, serving, stream, tool
from test_glm_parser import ARGUMENTS, CONTENT, TEXT, TOOLS
from tool_reader import partition, read, tokens
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
)
from vllm.tool_parsers.abstract_tool_parser import ToolParser

TWO = [tool("f", p="string", n="integer"), tool("g", p="string")]
P = "<arg_key>p</arg_key>"


def call(name: str, value: str) -> str:
    return f"<tool_call>{name}\n{P}<arg_value>{value}</arg_value></tool_call>"


PONG = ["<tool_call>", "f\n", P, "<arg_value>pong.py</arg_value></tool_call>"]
CUT_OFF = ["<tool_call>f\n", P, "<arg_value>ab", "cd"]
ROWS = {
    "1 value and end": (PONG, "", [("f", '{"p": "pong.py"}')]),
    "2 all at once": ([call("f", "x")], "", [("f", '{"p": "x"}')]),
    "3 empty finish chunk": ([*PONG, ""], "", [("f", '{"p": "pong.py"}')]),
    "4 rest of a call and a whole one": (
        ["<tool_call>f\n", P, "<arg_value>a", "</arg_value></tool_call>" + call("g", "b")],
        "",
        [("f", '{"p": "a"}'), ("g", '{"p": "b"}')],
    ),
    "5 content and a whole call": (["hi " + call("f", "x")], "hi ", [("f", '{"p": "x"}')]),
    "9 token by token": (tokens(call("f", "a b")), "", [("f", '{"p": "a b"}')]),
}


@pytest.mark.parametrize("parser", ["glm45", "glm47"])
@pytest.mark.parametrize("row", ROWS)
def test_glm_streams(row: str, parser: str) -> None:
    texts, content, calls = ROWS[row]
    reply = read(stream(serving(parser), chunks_of(texts), tools=TWO))
    assert (reply.content, reply.named_arguments) == (content, calls)
    assert reply.finish == "tool_calls"


def test_arguments_come_before_an_empty_finish_chunk() -> None:
    *_, arguments, finish = stream(serving("glm45"), chunks_of([*PONG, ""]), tools=TWO)
    (choice,) = arguments["choices"]
    assert choice["delta"]["tool_calls"][0]["function"] == {"arguments": '{"p": "pong.py"}'}
    assert choice["finish_reason"] is None
    (choice,) = finish["choices"]
    assert (choice["delta"], choice["finish_reason"]) == ({}, "tool_calls")


def test_only_the_first_call_without_parallel_calls() -> None:
    """Row 7: what the filter drops is neither sent nor taken for sent."""
    for texts in ([call("f", "a") + call("g", "b")], tokens(call("f", "a") + call("g", "b"))):
        chunks = stream(serving("glm45"), chunks_of(texts), tools=TWO, parallel_tool_calls=False)
        reply = read(chunks)
        assert reply.named_arguments == [("f", '{"p": "a"}')]


@pytest.mark.parametrize("texts", [CUT_OFF, ["".join(CUT_OFF)], tokens("".join(CUT_OFF))])
def test_generation_that_ends_within_a_string(texts: list[str]) -> None:
    """Row 8: nothing is lost, and nothing is made up."""
    reply = read(stream(serving("glm45"), chunks_of(texts, finish="length"), tools=TWO))
    assert reply.named_arguments == [("f", '{"p": "abcd')]


def test_whole_generator_does_not_depend_on_the_chunks() -> None:
    random = Random(19)
    chat = serving("glm45")
    for number in range(400):
        texts = [TEXT] if number == 0 else partition(TEXT, random)
        reply = read(stream(chat, chunks_of(texts), tools=TOOLS))
        assert (reply.content, reply.finish) == (CONTENT, "tool_calls")
        assert reply.arguments == [json.dumps(a, ensure_ascii=False) for a in ARGUMENTS]


def test_stream_and_full_reply_are_the_same() -> None:
    texts = ["早 ", call("f", "a 'b' \\n"), call("g", "")]
    message = full(serving("glm45"), chunks_of(texts), tools=TWO).choices[0].message
    reply = read(stream(serving("glm45"), chunks_of(texts), tools=TWO))
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls]
    assert (reply.content, reply.named_arguments) == (message.content, calls)


def test_call_behind_reasoning() -> None:
    chat = serving("glm45", "glm45")
    pieces = [("think", [1]), ("</think>", [8]), ("hi " + call("f", "x"), [9, 1, 6])]
    chunks = stream(chat, chunks_of(pieces), tools=TWO)
    reasoning, *rest = chunks[1:]
    assert reasoning["choices"][0]["delta"] == {"reasoning": "think"}
    reply = read([chunks[0], *rest])
    assert (reply.content, reply.named_arguments) == ("hi ", [("f", '{"p": "x"}')])


def test_every_choice_has_a_parser_of_its_own() -> None:
    one, two = (
        chunks_of(tokens(call(name, value)), choice=choice)
        for choice, name, value in ((0, "f", "first"), (1, "g", "second"))
    )
    in_turn = [chunk for pair in zip(one, two, strict=True) for chunk in pair]
    chunks = stream(serving("glm45"), in_turn, tools=TWO, n=2)
    assert read(chunks, 0).named_arguments == [("f", '{"p": "first"}')]
    assert read(chunks, 1).named_arguments == [("g", '{"p": "second"}')]


class Scripted(ToolParser):
    """Another parser: what it says, and what is then on its record, as a test says."""

    #: For each delta: the message, and the record after it.
    script: Sequence[tuple[DeltaMessage | None, list[dict]]] = ()

    def __init__(self, tokenizer: object) -> None:
        super().__init__(tokenizer)
        self.steps = iter(self.script)

    def extract_tool_calls_streaming(self, *_: object, **__: object) -> DeltaMessage | None:
        message, self.prev_tool_call_arr = next(self.steps)
        for part in message.tool_calls if message else ():
            while len(self.streamed_args_for_tool) <= part.index:
                self.streamed_args_for_tool.append("")
            self.streamed_args_for_tool[part.index] += part.function.arguments or ""
        return message


def begins(index: int, name: str, arguments: str | None = "") -> DeltaMessage:
    function = DeltaFunctionCall(name=name, arguments=arguments)
    part = DeltaToolCall(index=index, id=f"c{index}", type="function", function=function)
    return DeltaMessage(tool_calls=[part])


def goes_on(index: int, arguments: str) -> DeltaMessage:
    function = DeltaFunctionCall(arguments=arguments)
    # As real parsers do; assigned as a whole, `name` would count as set.
    part = DeltaToolCall(index=index, function=function.model_dump(exclude_none=True))
    return DeltaMessage(tool_calls=[part])


def play(*script: tuple[DeltaMessage | None, list[dict]]) -> list[dict]:
    """Stream a script of the other parser; the last step is that of the last chunk."""
    parser = type("Parser", (Scripted,), {"script": script})
    return stream(serving(parser), chunks_of(["x"] * len(script)), tools=TWO)


def record(arguments: object, name: str = "f") -> list[dict]:
    return [{"name": name, "arguments": arguments}]


@pytest.mark.parametrize(
    ("parts", "arguments"),
    [
        # Row 6: escapes, which `json.dumps` would write otherwise.
        (['{"a": "\\u4f60', '\\u597d"}'], {"a": "你好"}),
        # Row 6b: pretty-printed.
        (['{\n  "a": [\n    1,', '\n    "b c"\n  ]\n}'], {"a": [1, "b c"]}),
        (['{"a":', "1}"], {"a": 1}),
        # Arguments on record as a string, as Qwen3Coder's are.
        (['{"a": ', "1}"], '{"a": 1}'),
    ],
)
def test_other_parsers_arguments_go_out_verbatim(parts: list[str], arguments: object) -> None:
    first, last = parts
    reply = read(
        play(
            (begins(0, "f"), record({})),
            (goes_on(0, first), record({})),
            (goes_on(0, last), record(arguments)),
        )
    )
    assert reply.named_arguments == [("f", first + last)]
    assert reply.finish == "tool_calls"


@pytest.mark.parametrize(
    ("parts", "arguments", "whole"),
    [
        (['{"a": "b c', '", "d"'], {"a": "b c", "d": 1}, '{"a": "b c", "d": 1}'),
        (['{"a":', '"b"'], {"a": "b", "d": 1}, '{"a":"b","d":1}'),
        (['{\n "a":', ' "b"'], {"a": "b"}, '{\n "a": "b"}'),
        (['{"a":', " 1"], '{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
        (["", ""], {"a": 1}, '{"a": 1}'),
    ],
)
def test_what_is_missing_comes_with_the_last_delta(parts, arguments, whole) -> None:
    first, last = parts
    chunks = play(
        (begins(0, "f", first), record({})),
        (goes_on(0, last), record(arguments)),
    )
    assert read(chunks).named_arguments == [("f", whole)]
    assert chunks[-1]["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "function": {"arguments": whole.removeprefix(first)}}
    ]


def test_all_that_went_out_counts_for_each_choice_by_itself() -> None:
    script = (
        (begins(0, "f", '{"a":'), record({})),
        (goes_on(0, " 1"), record({})),
        (goes_on(0, ","), record({"a": 1, "b": 2})),
    )
    parser = type("Parser", (Scripted,), {"script": script})
    pairs = zip(*(chunks_of("xyz", choice=choice) for choice in (0, 1)), strict=True)
    chunks = stream(serving(parser), [c for pair in pairs for c in pair], tools=TWO, n=2)
    for choice in (0, 1):
        assert read(chunks, choice).named_arguments == [("f", '{"a": 1, "b": 2}')]


def test_missing_part_belongs_to_the_last_call_wherever_the_delta_ends() -> None:
    two = [*record({"p": "a"}), *record({"p": "b"}, "g")]
    last = DeltaMessage(
        content="bye", tool_calls=[*goes_on(0, '"a"}').tool_calls, *begins(1, "g").tool_calls]
    )
    chunks = play((begins(0, "f", '{"p": '), record({})), (last, two))
    reply = read(chunks)
    assert reply.named_arguments == [("f", '{"p": "a"}'), ("g", '{"p": "b"}')]
    assert reply.content == "bye"
    late = play(
        (begins(0, "f", '{"p": '), record({})),
        (begins(1, "g", '{"p": '), two),
        (goes_on(0, '"a"}'), two),
    )
    assert read(late).named_arguments == reply.named_arguments


def test_call_without_a_record_ends_the_stream_all_the_same() -> None:
    """Upstream's IndexError; it would be sent as an error event."""
    chunks = play((begins(0, "f", "{}"), []))
    assert read(chunks).named_arguments == [("f", "{}")]


def test_what_a_parser_forgot_to_count_is_not_sent_again() -> None:
    """What counts is what went out, not what the parser has gathered."""
    script = (
        (begins(0, "f", '{"a": '), record({})),
        (goes_on(0, "1"), record({"a": 1})),
    )

    class Forgetful(Scripted):
        def extract_tool_calls_streaming(self, *_: object, **__: object) -> DeltaMessage | None:
            message = super().extract_tool_calls_streaming()
            self.streamed_args_for_tool = [""]
            return message

    Forgetful.script = script
    chunks = stream(serving(Forgetful), chunks_of(["x", "y"]), tools=TWO)
    assert read(chunks).named_arguments == [("f", '{"a": 1}')]


def test_upstream_helper_is_left_for_its_tests() -> None:
    delta = OpenAIServingChat._create_remaining_args_delta(begins(0, "f"), "}", 0)
    assert delta.tool_calls[0].function.arguments == "}"


def test_stream_without_tools_is_untouched() -> None:
    chunks = [Chunk("a ", (1,)), Chunk("<tool_call>", (9,), "stop")]
    assert read(stream(serving("glm45"), chunks)).content == "a <tool_call>"
