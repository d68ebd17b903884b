"""P10a: the parser gives all events of a delta, and the same reply however the text arrives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import combinations
from random import Random

import pytest
from serving_kit import Tokenizer, chat_request, tool
from tool_reader import Reply, cut, partition, tokens
from vllm.entrypoints.openai.engine.protocol import DeltaMessage
from vllm.tool_parsers.glm4_moe_tool_parser import Glm4MoeModelToolParser
from vllm.tool_parsers.glm47_moe_tool_parser import Glm47MoeModelToolParser

PARSERS = [Glm4MoeModelToolParser, Glm47MoeModelToolParser]
TOOLS = [
    tool("f", p="string", n="integer"),
    tool("g", p="string", q="string", x="object", y="array"),
]
REQUEST = chat_request(tools=TOOLS)


def feed(parser: Glm4MoeModelToolParser, text: str, before: str = "") -> dict | None:
    """Give the parser a piece of text, and return its message as it would be sent."""
    message = parser.extract_tool_calls_streaming(
        previous_text=before,
        current_text=before + text,
        delta_text=text,
        previous_token_ids=[],
        current_token_ids=[],
        delta_token_ids=[],
        request=REQUEST,
    )
    assert message is None or type(message) is DeltaMessage
    return message and message.model_dump(exclude_unset=True)


def parse(
    pieces: Iterable[str], kind: type[Glm4MoeModelToolParser] = Glm4MoeModelToolParser
) -> tuple[Reply, Glm4MoeModelToolParser]:
    """Feed all pieces; the parser must have used up its text."""
    parser, reply = kind(Tokenizer()), Reply()
    for piece in pieces:
        message = feed(parser, piece)
        if message is not None:
            reply.add(message)
    assert parser._buffer == ""
    return reply, parser


def deltas(pieces: Iterable[str], kind: type[Glm4MoeModelToolParser]) -> list[dict | None]:
    parser = kind(Tokenizer())
    return [feed(parser, piece) for piece in pieces]


def brief(message: dict | None) -> object:
    """Content, and name and arguments of each call; ids are random."""
    if message is None:
        return None
    calls = [(c["index"], *c["function"].values()) for c in message.get("tool_calls", [])]
    return message.get("content"), calls


@pytest.mark.parametrize("kind", PARSERS)
def test_value_and_end_in_one_delta(kind) -> None:
    pieces = [
        "<tool_call>",
        "f\n",
        "<arg_key>p</arg_key>",
        "<arg_value>pong.py</arg_value></tool_call>",
    ]
    assert [brief(message) for message in deltas(pieces, kind)] == [
        None,
        (None, [(0, "f", "")]),
        None,
        (None, [(0, '{"p": "pong.py"}')]),
    ]
    _, parser = parse(pieces, kind)
    assert parser.prev_tool_call_arr == [{"name": "f", "arguments": {"p": "pong.py"}}]
    assert parser.streamed_args_for_tool == ['{"p": "pong.py"}']


@pytest.mark.parametrize("kind", PARSERS)
def test_content_and_two_calls_in_one_delta(kind) -> None:
    one = "<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"
    pieces = [
        f"hi <tool_call>f\n{one}<tool_call>g\n<arg_key>p</arg_key><arg_value>a",
        "b</arg_value></tool_call>bye",
    ]
    assert [brief(message) for message in deltas(pieces, kind)] == [
        ("hi ", [(0, "f", '{"n": 3}'), (1, "g", '{"p": "a')]),
        ("bye", [(1, 'b"}')]),
    ]


@pytest.mark.parametrize("kind", PARSERS)
def test_call_without_arguments(kind) -> None:
    assert [brief(m) for m in deltas(["<tool_call>f</tool_call>"], kind)] == [
        (None, [(0, "f", "{}")])
    ]


@pytest.mark.parametrize("kind", PARSERS)
def test_empty_call_leaves_no_trace(kind) -> None:
    reply, parser = parse(["x<tool_call></tool_call>y"], kind)
    assert (reply.content, reply.calls, parser.prev_tool_call_arr) == ("xy", [], [])


@pytest.mark.parametrize("kind", PARSERS)
def test_end_tag_in_two_deltas(kind) -> None:
    pieces = ["<tool_call>f\n<arg_key>p</arg_key><arg_value>ab</arg_", "value></tool_call>"]
    assert [brief(message) for message in deltas(pieces, kind)] == [
        (None, [(0, "f", '{"p": "ab')]),
        (None, [(0, '"}')]),
    ]


def test_begun_call_sends_its_index_and_arguments_only() -> None:
    parser = Glm4MoeModelToolParser(Tokenizer())
    first = feed(parser, "<tool_call>f\n<arg_key>p</arg_key><arg_value>a")
    then = feed(parser, "b</arg_value></tool_call>")
    assert first == {
        "tool_calls": [
            {
                "id": parser._tool_call_ids[0],
                "type": "function",
                "index": 0,
                "function": {"name": "f", "arguments": '{"p": "a'},
            }
        ]
    }
    assert then == {"tool_calls": [{"index": 0, "function": {"arguments": 'b"}'}}]}


def test_duplicate_key_is_skipped_as_before() -> None:
    again = "<arg_key>p</arg_key><arg_value>b</arg_value>"
    text = f"<tool_call>f\n<arg_key>p</arg_key><arg_value>a</arg_value>{again}</tool_call>"
    assert parse([text])[0].arguments == ['{"p": "a"}']


def test_without_tools_text_is_content() -> None:
    parser = Glm4MoeModelToolParser(Tokenizer())
    arguments = dict.fromkeys(
        ("previous_text", "current_text", "previous_token_ids", "current_token_ids"), ""
    )
    arguments |= {"delta_token_ids": [], "request": chat_request()}
    message = parser.extract_tool_calls_streaming(delta_text="<tool_call>", **arguments)
    assert message == DeltaMessage(content="<tool_call>")
    assert parser.extract_tool_calls_streaming(delta_text="", **arguments) is None


TEXT = (
    "早 <"
    "<tool_call>f\n"
    '<arg_key>p</arg_key>\n<arg_value>a "b" \\n\n</arg </b>é🙂</arg_value>\n'
    "<arg_key>n</arg_key>\n<arg_value>-7</arg_value>\n"
    "</tool_call>\n"
    "<tool_call>g\n"
    '<arg_key>x</arg_key><arg_value>{"k": [1, {"ü": "\\u00e9 \\"q\\""}], "e": {}}</arg_value>'
    "<arg_key>q</arg_key><arg_value></arg_value>"
    "<arg_key>y</arg_key><arg_value>[true, null, 'x']</arg_value>"
    "</tool_call> ok"
)
CONTENT = "早 <\n ok"
ARGUMENTS = [
    {"p": 'a "b" \\n\n</arg </b>é🙂', "n": -7},
    {"x": {"k": [1, {"ü": 'é "q"'}], "e": {}}, "q": "", "y": "[true, null, 'x']"},
]


def check(pieces: Iterable[str], kind: type = Glm4MoeModelToolParser) -> None:
    """Each way to cut `TEXT` gives the same reply, and arguments as `json.dumps` writes them."""
    reply, parser = parse(pieces, kind)
    assert reply.content == CONTENT
    assert reply.named_arguments == [
        (name, json.dumps(arguments, ensure_ascii=False))
        for name, arguments in zip("fg", ARGUMENTS, strict=True)
    ]
    assert [call["arguments"] for call in parser.prev_tool_call_arr] == ARGUMENTS


@pytest.mark.parametrize("kind", PARSERS)
def test_text_in_one_piece_in_characters_and_in_tokens(kind) -> None:
    for pieces in ([TEXT], list(TEXT), tokens(TEXT)):
        check(pieces, kind)


@pytest.mark.parametrize("kind", PARSERS)
def test_every_cut_in_two(kind) -> None:
    for point in range(1, len(TEXT)):
        check(cut(TEXT, [point]), kind)


def test_every_cut_in_three() -> None:
    for points in combinations(range(1, len(TEXT)), 2):
        check(cut(TEXT, points))


@pytest.mark.parametrize("kind", PARSERS)
def test_random_partitions(kind) -> None:
    random = Random(18)
    for _ in range(3000):
        check(partition(TEXT, random), kind)
