"""P10 over HTTP: vLLM's routes, read by the official clients, streamed and not streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import anthropic
import openai
import pytest
from http_kit import server
from serving_kit import MODEL, Script, chunks_of
from test_glm_parser import ARGUMENTS, TEXT, TOOLS
from tool_reader import partition, read, tokens

# Both parsers, the streaming one and the other, agree on a text without content behind a call.
CALLS = TEXT.removesuffix(" ok").replace("</tool_call>\n", "</tool_call>")
CONTENT = "早 <"
RANDOM = Random(20)
PIECES = {
    "in one": [CALLS],
    "in one, then nothing": [CALLS, ""],
    "in tokens": tokens(CALLS),
    "in tokens, then nothing": [*tokens(CALLS), ""],
    **{f"at random {number}": partition(CALLS, RANDOM) for number in range(20)},
}
WITH_CONTENT_BEHIND = {f"behind {number}": partition(TEXT, RANDOM) for number in range(20)}
WITH_CONTENT_BEHIND["behind, in one"] = [TEXT]
WITH_CONTENT_BEHIND["behind, in tokens"] = tokens(TEXT)
SCRIPTS = {
    name: Script(chunks_of(pieces)) for name, pieces in (PIECES | WITH_CONTENT_BEHIND).items()
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server(SCRIPTS, "glm45") as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def other_client(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key="-", max_retries=0, timeout=30) as client:
        yield client


def request(script: str) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}], "tools": TOOLS}


@pytest.mark.parametrize("script", PIECES)
def test_streamed_reply_is_the_one_that_is_not_streamed(client, script) -> None:
    whole = client.chat.completions.create(**request(script)).choices[0]
    chunks = list(client.chat.completions.create(stream=True, **request(script)))
    reply = read([chunk.model_dump(exclude_unset=True) for chunk in chunks])
    calls = whole.message.tool_calls
    assert reply.named_arguments == [(c.function.name, c.function.arguments) for c in calls]
    assert reply.arguments == [json.dumps(a, ensure_ascii=False) for a in ARGUMENTS]
    assert reply.content == whole.message.content == CONTENT
    assert reply.finish == whole.finish_reason == "tool_calls"


def test_clients_own_accumulation(client) -> None:
    with client.chat.completions.stream(**request("in one")) as stream:
        (choice,) = stream.get_final_completion().choices
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name) for c in calls] == [("function", "f"), ("function", "g")]
    assert [json.loads(c.function.arguments) for c in calls] == ARGUMENTS
    assert choice.message.content == CONTENT


def messages_request(script: str) -> dict:
    functions = [tool["function"] for tool in TOOLS]
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
    messages = [{"role": "user", "content": script}]
    return {"model": MODEL, "max_tokens": 100, "messages": messages, "tools": tools}


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def calls_of(message: anthropic.types.Message) -> list[tuple[str, object]]:
    return [(b.name, b.input) for b in message.content if b.type == "tool_use"]


INPUTS = list(zip("fg", ARGUMENTS, strict=True))


@pytest.mark.parametrize("script", ["in one", "in tokens", "at random 0"])
def test_messages_are_the_same_streamed_and_not(other_client, script) -> None:
    whole = other_client.messages.create(**messages_request(script))
    with other_client.messages.stream(**messages_request(script)) as stream:
        streamed = stream.get_final_message()
    assert calls_of(whole) == calls_of(streamed) == INPUTS
    assert text_of(whole) == text_of(streamed) == CONTENT
    assert whole.stop_reason == streamed.stop_reason == "tool_use"


@pytest.mark.parametrize("script", WITH_CONTENT_BEHIND)
def test_messages_lose_no_call_to_the_content_behind_it(other_client, script) -> None:
    """One delta then holds the rest of a call and content that came after it."""
    with other_client.messages.stream(**messages_request(script)) as stream:
        message = stream.get_final_message()
    assert calls_of(message) == INPUTS
    assert text_of(message) == "早 <\n ok"
