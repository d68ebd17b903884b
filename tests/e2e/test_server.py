"""`vllm serve`, read by the official client: replies that are known, streamed and not."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import openai
import process_kit
import pytest
import tiny_playback
from e2e_kit import Ground, by_transformers
from patched_kit import ROOT
from server_kit import MODEL, Server, serve
from storm import COUNT, storm

PLACES = {"city": "San Francisco, CA", "note": 'say "hi" & <b>bold</b>, then 17 + 4 = 21, Zwölf 早'}
ORDERS = {"city": "Tokyo", "days": 3, "tags": ["a", "b"]}
CALL = (
    "<tool_call>get_weather\n"
    "<arg_key>city</arg_key>\n<arg_value>San Francisco, CA</arg_value>\n"
    '<arg_key>note</arg_key>\n<arg_value>say "hi" & <b>bold</b>, then 17 + 4 = 21, Zwölf 早'
    "</arg_value>\n</tool_call>"
)
CALLS = CALL + (
    "<tool_call>plan\n<arg_key>city</arg_key>\n<arg_value>Tokyo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    '<arg_key>tags</arg_key>\n<arg_value>["a", "b"]</arg_value>\n</tool_call>'
)
#: The name of each text, what the model says, and what calls of tools that holds.
TOOL_TEXTS = {
    "one call": ("sure" + CALL, [("get_weather", PLACES)]),
    "two calls": ("sure" + CALLS, [("get_weather", PLACES), ("plan", ORDERS)]),
    "no call": ("sure", []),
}
#: MiniMax's models begin within the reasoning.
REASONING = {
    "thought": ("hm, 17 + 4, that is the rest</think>21", "hm, 17 + 4, that is the rest", "21"),
    "no thought": ("</think>21", None, "21"),
    "no end": ("the quick brown fox " * 9, "the quick brown fox " * 9, None),
}


def tool(name: str, **types: str) -> dict:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


#: Bytes that a server may have more after a storm than after one before.
MARGIN = 16 << 20
TOOLS = [
    tool("get_weather", city="string", note="string"),
    tool("plan", city="string", days="integer", tags="array"),
]


@dataclass(frozen=True)
class Talk:
    """A server, and what its model is asked with."""

    playback: tiny_playback.Playback
    client: openai.OpenAI
    interval: int

    def fields(self, text: str, **more: object) -> dict:
        messages = self.playback.messages[text]
        return {"model": MODEL, "messages": messages, "temperature": 0, **more}

    def whole(self, text: str, **more: object):
        """Return the reply's choice and the usage."""
        reply = self.client.chat.completions.create(**self.fields(text, **more))
        return reply.choices[0], reply.usage

    def streamed(self, text: str, **more: object):
        """Return what the client makes of the stream, and in how many chunks it came."""
        options = {"include_usage": True}
        asked = self.fields(text, stream_options=options, **more)
        with self.client.chat.completions.stream(**asked) as stream:
            chunks = sum(event.type == "chunk" for event in stream)
            final = stream.get_final_completion()
        return final.choices[0], final.usage, chunks


@pytest.fixture(scope="session")
def playback(e2e: Ground) -> tiny_playback.Playback:
    texts = {name: text for name, (text, _) in TOOL_TEXTS.items()}
    # Reasoning that ends with the first token, which is a chunk of its own at all intervals.
    texts |= {f"{name}, thought": f"</think>{text}" for name, text in texts.items()}
    texts |= {name: text for name, (text, *_) in REASONING.items()}
    return tiny_playback.save(e2e.work / "playback", texts)


@contextmanager
def talk(e2e: Ground, playback, parser: str, interval: int, *options: str) -> Iterator[Talk]:
    """Serve the texts, in processes that are forked: they are up sooner."""
    given = ["--tool-call-parser", parser, "--enable-auto-tool-choice"]
    given += ["--stream-interval", str(interval), "--max-num-seqs", "4", *options]
    with serve(e2e, playback.folder, *given, VLLM_WORKER_MULTIPROC_METHOD="fork") as server:
        yield Talk(playback, server.client(), interval)


PARSERS, INTERVALS, DEFAULT = ("glm45", "glm47"), (1, 7, 40, 90, 150), ("glm47", 40)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((p, i), id=f"{p}-{i}", marks=[pytest.mark.slow] * ((p, i) != DEFAULT))
        for p in PARSERS
        for i in INTERVALS
    ],
)
def glm(request, e2e: Ground, playback) -> Iterator[Talk]:
    options = ("--reasoning-parser", "minimax_m2")
    with talk(e2e, playback, *request.param, *options) as server:
        yield server


def calls(choice) -> list[tuple[str, str]]:
    found = choice.message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in found]


@pytest.mark.parametrize("text", TOOL_TEXTS)
def test_streamed_calls_are_the_others(glm: Talk, text: str) -> None:
    wanted = [(name, json.dumps(a, ensure_ascii=False)) for name, a in TOOL_TEXTS[text][1]]
    whole, usage = glm.whole(f"{text}, thought", tools=TOOLS)
    choice, streamed_usage, chunks = glm.streamed(f"{text}, thought", tools=TOOLS)
    assert calls(whole) == calls(choice) == wanted
    assert whole.message.content == choice.message.content == "sure"
    assert whole.finish_reason == choice.finish_reason == ("tool_calls" if wanted else "stop")
    tokens = len(glm.playback.answers[f"{text}, thought"])
    assert usage.completion_tokens == streamed_usage.completion_tokens == tokens
    assert usage.completion_tokens_details == streamed_usage.completion_tokens_details
    assert usage.completion_tokens_details.reasoning_tokens == 0
    # The role, the first token, each interval, and the usage: no more chunks than that.
    assert chunks <= 3 + -(-(tokens - 1) // glm.interval)


@pytest.mark.parametrize("text", REASONING)
def test_reasoning_is_counted(glm: Talk, text: str) -> None:
    _, reasoning, content = REASONING[text]
    answer = glm.playback.answers[text]
    end = glm.playback.answers["no thought"][0]
    count = answer.index(end) if end in answer else len(answer)
    whole, usage = glm.whole(text)
    choice, streamed_usage, _ = glm.streamed(text)
    assert (whole.message.reasoning or None) == reasoning
    assert getattr(choice.message, "reasoning", None) == reasoning
    assert whole.message.content == (choice.message.content or None) == content
    told = [one.completion_tokens_details.reasoning_tokens for one in (usage, streamed_usage)]
    assert told == [count, count]
    assert usage.completion_tokens == streamed_usage.completion_tokens == len(answer)


@pytest.fixture
def unpatched(e2e: Ground, base, tmp_path: Path) -> Ground:
    """vLLM as it was. The test platform asks `ascend_runtime` for sizes, and gets it."""
    for source in (base.root / "vllm", base.root / "vllm.egg-info", ROOT / "ascend_runtime"):
        (tmp_path / source.name).symlink_to(source)
    return replace(e2e, site=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "arguments"), [(40, "{}"), (90, None), (150, None)])
def test_the_pristine_server_loses_arguments(
    unpatched: Ground, playback, interval: int, arguments: str | None
) -> None:
    """How much is lost depends on where in the text the chunks end."""
    with talk(unpatched, playback, "glm47", interval) as server:
        whole, usage = server.whole("one call", tools=TOOLS)
        assert calls(whole) == [("get_weather", json.dumps(PLACES, ensure_ascii=False))]
        assert usage.completion_tokens_details is None
        choice, *_ = server.streamed("one call", tools=TOOLS)
        assert calls(choice) == ([("get_weather", arguments)] if arguments else [])


def test_storms_leave_nothing_behind(e2e: Ground) -> None:
    """Of two hundred requests at once a third is cancelled; the others get what one alone gets.

    A first storm warms up: threads, connections, the allocators' memory. After the others, memory
    was seen to be the same to the MiB.
    """
    chance = random.Random(6)
    some = [[chance.randrange(5, 380) for _ in range(3 + 5 * i)] for i in range(12)]
    wanted = by_transformers(e2e.model("qwen3"), some, COUNT)
    which = [chance.randrange(len(some)) for _ in range(200)]
    with serve(e2e, e2e.model("qwen3"), "--max-num-seqs", "64", "--max-model-len", "256") as busy:
        states = [state_after_storm(busy, [(some[i], wanted[i]) for i in which]) for _ in range(3)]
    warm, *later = states
    for processes, memory in later:
        assert processes == warm[0]
        assert memory < warm[1] + MARGIN


def state_after_storm(
    server: Server, asked: Sequence[tuple[list[int], list[int]]]
) -> tuple[set[int], int]:
    """Check the replies to prompts; return the server's processes and their bytes of memory."""
    replies = storm(server.address, [prompt for prompt, _ in asked])
    assert all(reply in (None, wanted) for reply, (_, wanted) in zip(replies, asked, strict=True))
    assert sum(reply is None for reply in replies) == 67
    deadline = time.monotonic() + 5
    while server.gauge("num_requests_running") + server.gauge("num_requests_waiting"):
        assert time.monotonic() < deadline, "cancelled requests go on"
        time.sleep(0.05)
    assert server.gauge("kv_cache_usage_perc") == 0
    members = process_kit.family(server.pid)
    return {one.pid for one in members}, process_kit.resident(members)
