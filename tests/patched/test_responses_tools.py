"""P10a and the Responses API, whose stream takes one event from a delta: its parser gives one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from serving_kit import Script, Tokenizer, chunks_of
from vllm.entrypoints.openai.responses.context import SimpleContext
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.parser.abstract_parser import DelegatingParser
from vllm.tool_parsers import ToolParserManager

# Calls without arguments: any other fails in 0.18.0 when the parser looks up the argument's type.
TOOLS = [SimpleNamespace(name="f"), SimpleNamespace(name="g")]
REQUEST = SimpleNamespace(
    tools=TOOLS,
    tool_choice="auto",
    request_id="r",
    top_logprobs=None,
    is_include_output_logprobs=lambda: False,
)


def events(texts: list[str], parser: str = "glm47") -> list[tuple]:
    """Stream the texts and return what the events say about calls."""
    serving = OpenAIServingResponses.__new__(OpenAIServingResponses)
    tool_parser = ToolParserManager.get_tool_parser(parser)
    serving.parser = SimpleNamespace(reasoning_parser_cls=None, tool_parser_cls=tool_parser)

    async def contexts():
        context = SimpleContext()
        async for output in Script(chunks_of(texts)).play(stream=True):
            context.append_output(output)
            yield context

    async def collect() -> list:
        stream = serving._process_simple_streaming_events(
            REQUEST, None, contexts(), None, "m", Tokenizer(), None, 0, lambda event: event
        )
        return [event async for event in stream]

    return [told for event in asyncio.run(collect()) if (told := _told(event))]


def _told(event) -> tuple | None:
    kind = event.type.removeprefix("response.")
    if kind.startswith("output_item") and event.item.type == "function_call":
        return kind, event.item.name, event.item.arguments
    if kind.startswith("function_call"):
        return kind, getattr(event, "delta", None) or event.arguments
    return None


CALL = [
    ("output_item.added", "f", ""),
    ("function_call_arguments.delta", "{}"),
    ("function_call_arguments.done", "{}"),
    ("output_item.done", "f", "{}"),
]


@pytest.mark.parametrize(
    "texts", [["x", "<tool_call>f</tool_call>", ""], list("x<tool_call>f\n</tool_call>")]
)
def test_name_and_arguments_come_one_after_the_other(texts: list[str]) -> None:
    assert events(texts) == CALL


def test_two_calls_in_one_delta_do_not_end_the_stream() -> None:
    """Merged, they would be `Multiple tool calls in one delta is not supported`."""
    texts = ["x", "<tool_call>f</tool_call><tool_call>g</tool_call>", "", "", ""]
    told = [event for event in events(texts) if event[0].endswith((".added", ".delta"))]
    assert told == [
        ("output_item.added", "f", ""),
        ("function_call_arguments.delta", "{}"),
        ("output_item.added", "g", ""),
        ("function_call_arguments.delta", "{}"),
    ]


def test_delegating_parser_gives_all_events() -> None:
    """It passes on what the parser says; nothing in vLLM reads it event by event."""

    class Delegating(DelegatingParser):
        def __init__(self, tokenizer: Tokenizer) -> None:
            super().__init__(tokenizer)
            self._tool_parser = ToolParserManager.get_tool_parser("glm47")(tokenizer)

    text = "<tool_call>f</tool_call>"
    message = Delegating(Tokenizer()).extract_tool_calls_streaming(
        "", text, text, [], [], [], REQUEST
    )
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [("f", "{}")]
