"""Merging of streamed messages, and the arguments that a call still lacks."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ascend_runtime.tool_stream import (
    append_unsent_args,
    begun_calls_first,
    compact_json_fragment,
    drained,
    merge_delta_messages,
    one_event_per_call,
    record_sent_args,
    remaining_args,
)


class Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class Call(BaseModel):
    index: int
    id: str | None = None
    type: str | None = None
    function: Function | None = None


class Message(BaseModel):
    """What vLLM's `DeltaMessage` is."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] = Field(default_factory=list)


def sent_form(message: Message) -> dict:
    """What goes over the wire: what was set."""
    return message.model_dump(exclude_unset=True)


def named(index: int, name: str = "f") -> Message:
    function = {"name": name, "arguments": ""}
    return Message(tool_calls=[Call(index=index, id="c", type="function", function=function)])


def args(index: int, text: str) -> Message:
    return Message(tool_calls=[Call(index=index, function={"arguments": text})])


TODOS = {"todos": [{"content": "A", "activeForm": "B", "status": "in_progress"}]}


@pytest.mark.parametrize(
    ("expected", "sent", "rest"),
    [
        ({"a": 1}, '{"a":1', "}"),
        ({"a": 1}, '{"a": 1', "}"),
        ('{"a":1}', '{"a":1', "}"),
        ('{"a": 1}', '{"a":1', "}"),
        (TODOS, '{"todos":[{"content": "A"', ',"activeForm":"B","status":"in_progress"}]}'),
        ({"a": 1}, "not-json", None),
        ({"a": 1}, '{"a": 2', None),
        ({}, '{"p": "ab', None),  # cut off within a value
        ({"a": [1, 2]}, "", '{"a": [1, 2]}'),
        ('{"a":[1,2]}', "", '{"a":[1,2]}'),
        ({"a": "你"}, "", '{"a": "你"}'),
        ({}, "", "{}"),
        ({"a": 1}, '{"a": 1}', ""),
        ({"a": 1}, '{"a":1}', ""),
        ({"a": 1}, '{\n  "a": 1\n}\n', ""),
        ({"a": "b c"}, '{"a":"b c"}', ""),
        ({"a": "b c"}, '{"a":"bc"}', None),
        ({"a": "b c"}, '{"a":  "b ', 'c"}'),
        ({"a": 'say "hi" \\ '}, '{"a":"say \\"h', 'i\\" \\\\ "}'),
        ('{"a": "\\u4f60"}', '{"a":"\\u4f', '60"}'),
        ('{"a": "\\u4f60"}', '{"a":"你', '"}'),
        ('{"a": "cut off', '{"a": "cu', "t off"),
        ('{"a": "cut off', '{"b', None),
    ],
)
def test_remaining_args(expected: object, sent: str, rest: str | None) -> None:
    assert remaining_args(expected, sent) == rest


@pytest.mark.parametrize(
    ("fragment", "compact"),
    [
        ("", ""),
        (' {\n\t"a b" : [ 1 , 2 ] }\r\n', '{"a b":[1,2]}'),
        ('{"a": "b  c', '{"a":"b  c'),
        ('{"a": "quote \\" and  blank" , ', '{"a":"quote \\" and  blank",'),
        ('{"a": "back \\\\" , "b": 1', '{"a":"back \\\\","b":1'),
        ('{"a": "cut \\', '{"a":"cut \\'),
        ('{"a": "line\nbreak"}', '{"a":"line\nbreak"}'),
    ],
)
def test_compact_json_fragment(fragment: str, compact: str) -> None:
    assert compact_json_fragment(fragment) == compact


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=st.dictionaries(st.text(), JSON, max_size=4),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    separators=st.sampled_from([None, (",", ":"), (", ", ": "), (" , ", " :\n")]),
    part=st.floats(0, 1),
)
def test_rest_completes_what_was_sent_however_it_was_formatted(
    value: dict, indent: Any, separators: Any, part: float
) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert compact_json_fragment(text) == compact
    sent = text[: round(part * len(text))]
    for expected in (value, compact, text):
        rest = remaining_args(expected, sent)
        assert rest is not None
        assert json.loads(sent + rest) == value


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        ([Message(content="a"), Message(content="b")], {"content": "ab"}),
        ([Message(reasoning="a"), Message(reasoning="b")], {"reasoning": "ab"}),
        ([Message(reasoning="a"), Message(content="b")], {"reasoning": "a", "content": "b"}),
        ([Message(content="a"), Message(content=None)], {"content": "a"}),
        (
            [Message(content="a"), args(0, "x"), Message(content="b")],
            {"content": "ab", "tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
        ),
        (
            [args(0, "x"), args(1, "y"), args(0, "z")],
            {
                "tool_calls": [
                    {"index": 0, "function": {"arguments": "xz"}},
                    {"index": 1, "function": {"arguments": "y"}},
                ]
            },
        ),
        (
            [named(1), args(1, "{"), args(1, "}")],
            {
                "tool_calls": [
                    {
                        "index": 1,
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ]
            },
        ),
        (
            [args(0, "x"), named(0, "later")],
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c",
                        "type": "function",
                        "function": {"arguments": "x", "name": "later"},
                    }
                ]
            },
        ),
        (
            [Message(tool_calls=[Call(index=0, id="c")]), args(0, "x")],
            {"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": "x"}}]},
        ),
        (
            [args(0, "x"), Message(tool_calls=[Call(index=0, id="c")])],
            {"tool_calls": [{"index": 0, "function": {"arguments": "x"}, "id": "c"}]},
        ),
        (
            [Message(tool_calls=[*args(0, "x").tool_calls, *args(0, "y").tool_calls]), named(1)],
            {
                "tool_calls": [
                    {"index": 0, "function": {"arguments": "x"}},
                    {"index": 0, "function": {"arguments": "y"}},
                    named(1).model_dump()["tool_calls"][0],
                ]
            },
        ),
    ],
)
def test_merge(messages: list[Message], merged: dict) -> None:
    first, *others = (message.model_copy(deep=True) for message in messages)
    for other in others:
        assert merge_delta_messages(first, other) is first
    assert sent_form(first) == merged


def test_sent_arguments_are_recorded_for_each_call() -> None:
    sent: dict[int, str] = {}
    for message in (
        Message(content="a"),
        named(0),
        args(0, '{"a"'),
        Message(tool_calls=[*args(0, ": 1}").tool_calls, *args(1, "{").tool_calls]),
        Message(tool_calls=[Call(index=2)]),
    ):
        record_sent_args(message, sent)
    assert sent == {0: '{"a": 1}', 1: "{"}


@pytest.mark.parametrize(
    ("delta", "sent", "after"),
    [
        # The call is in the delta: what is missing comes behind its own part.
        (args(1, '"b'), '{"a": ', [(1, '"b"}')]),
        (args(1, ' "b"}'), '{"a":', [(1, ' "b"}')]),
        (named(1), "", [(1, '{"a": "b"}')]),
        # It is not: it comes last.
        (args(0, "x"), '{"a": "b"', [(0, "x"), (1, "}")]),
        (args(0, "x"), '{"a": "b"}', [(0, "x")]),
        # Without a function, or twice.
        (Message(tool_calls=[Call(index=1)]), '{"a": "b"', [(1, "}")]),
        (
            Message(tool_calls=[*args(1, '{"a"').tool_calls, *args(1, ": ").tool_calls]),
            "",
            [(1, '{"a"'), (1, ': "b"}')],
        ),
        # It cannot be aligned with what was sent.
        (args(1, "other"), "some", [(1, "other")]),
        (args(1, ': "b"}'), '{"A"', [(1, ': "b"}')]),
        # Its own part spoils what can still become right: a brace too many, a quotation mark lost.
        (args(1, '"}}'), '{"a": "b', [(1, '"}')]),
        (args(1, "}}"), '{"a": "b"', [(1, "}")]),
        (args(1, "b}"), '{"a": "', [(1, 'b"}')]),
        (args(1, "other"), "", [(1, '{"a": "b"}')]),
        # It is right by itself, in another form.
        (args(1, '"\\u0062"}'), '{"a": ', [(1, '"\\u0062"}')]),
    ],
)
def test_what_is_missing_is_appended(delta: Message, sent: str, after: list) -> None:
    delta.content = "kept"
    before = delta.model_copy(deep=True)
    append_unsent_args(delta, 1, {"a": "b"}, sent)
    assert [(c.index, c.function.arguments) for c in delta.tool_calls if c.function] == after
    assert delta.content == "kept"
    for old, new in zip(before.tool_calls, delta.tool_calls, strict=False):
        assert (new.id, new.type, new.index) == (old.id, old.type, old.index)
        assert old.function is None or new.function.name == old.function.name


@pytest.mark.parametrize("record", [{}, {"a": "b"}, '{"a": "b"}'])
def test_record_that_is_older_than_the_text_takes_nothing_away(record: object) -> None:
    """A parser may not have noted what it gives when the generation is cut."""
    delta = args(1, '{"a": "b", "c": "d')
    append_unsent_args(delta, 1, record, "")
    assert delta.tool_calls[0].function.arguments == '{"a": "b", "c": "d'


def test_appended_call_sets_nothing_but_index_and_arguments() -> None:
    delta = named(0)
    append_unsent_args(delta, 1, {}, "")
    assert sent_form(delta)["tool_calls"][1] == {"index": 1, "function": {"arguments": "{}"}}


class Letters:
    """Gives its text letter by letter, one a call."""

    def __init__(self) -> None:
        self.buffer = ""
        self.asked: list = []

    @drained
    def extract(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: object,
    ) -> Message | None:
        """Its words."""
        self.asked.append((previous_text, current_text, delta_text))
        self.asked[-1] += (previous_token_ids, current_token_ids, delta_token_ids, request)
        self.buffer += delta_text
        letter, self.buffer = self.buffer[:1], self.buffer[1:]
        return Message(content=letter) if letter else None


def test_drained_parser_gives_all() -> None:
    parser = Letters()
    message = parser.extract("a", "abc", "bc", [1], [1, 2], [2], "request")
    assert sent_form(message) == {"content": "bc"}
    assert parser.asked == [
        ("a", "abc", "bc", [1], [1, 2], [2], "request"),
        ("abc", "abc", "", [1, 2], [1, 2], [], "request"),
        ("abc", "abc", "", [1, 2], [1, 2], [], "request"),
    ]
    assert parser.extract("abc", "abc", "", [1, 2], [1, 2], [], "request") is None


def test_drained_parser_takes_its_arguments_by_name() -> None:
    arguments = dict.fromkeys(inspect.signature(Letters.extract).parameters, "")
    del arguments["self"]
    assert Letters().extract(**arguments | {"delta_text": "xy"}).content == "xy"
    assert (Letters.extract.__name__, Letters.extract.__doc__) == ("extract", "Its words.")


def test_parser_that_is_not_to_be_drained_gives_one_event_a_call() -> None:
    parser = Letters()
    one_event_per_call(parser)
    assert parser.extract("", "ab", "ab", [], [], [], None).content == "a"
    assert parser.extract("ab", "ab", "", [], [], [], None).content == "b"
    assert parser.extract("ab", "ab", "", [], [], [], None) is None
    assert len(parser.asked) == 3


def event(delta: dict, **fields: object) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": None} | fields
    return f"data: {json.dumps({'id': 'r', 'choices': [choice]})}\n\n"


BEGUN = {"index": 0, "function": {"arguments": "}"}}
NEW = {"index": 1, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize(
    ("given_event", "events"),
    [
        (event({"content": "a", "tool_calls": [NEW]}), None),
        (event({"tool_calls": [BEGUN, NEW]}), None),
        (event({"content": "", "tool_calls": [BEGUN]}), None),
        (event({"content": 'a "tool_calls" b'}, finish_reason="tool_calls"), None),
        ('data: {"choices": [], "tool_calls": 1}\n\n', None),
        ('data: {"error": {"tool_calls": 1}}\n\n', None),
        ("data: [DONE]\n\n", None),
        (
            event({"content": "a", "tool_calls": [BEGUN]}, finish_reason="tool_calls"),
            [
                event({"tool_calls": [BEGUN]}),
                event({"content": "a", "tool_calls": []}, finish_reason="tool_calls"),
            ],
        ),
        (
            event({"content": "a", "tool_calls": [BEGUN, NEW]}),
            [event({"tool_calls": [BEGUN]}), event({"content": "a", "tool_calls": [NEW]})],
        ),
        (
            event({"reasoning": "a", "tool_calls": [BEGUN]}),
            [event({"tool_calls": [BEGUN]}), event({"reasoning": "a", "tool_calls": []})],
        ),
    ],
)
def test_begun_calls_come_before_content(given_event: str, events: list[str] | None) -> None:
    async def source() -> Any:
        yield given_event

    async def collect() -> list[str]:
        return [part async for part in begun_calls_first(source())]

    assert asyncio.run(collect()) == ([given_event] if events is None else events)
