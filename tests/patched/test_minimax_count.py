"""P9: MiniMax-M2's parsers count what comes before the end tag; so does the Responses API."""

from __future__ import annotations

import asyncio
import random

import pytest
from serving_kit import Script, Tokenizer, chunks_of
from vllm.entrypoints.openai.engine.protocol import RequestResponseMetadata
from vllm.entrypoints.openai.responses.context import SimpleContext
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.parser import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from vllm.sampling_params import SamplingParams

import ascend_runtime.usage

MINIMAX = ("minimax_m2", "minimax_m2_append_think")


def parser(name: str, **vocab: int) -> ReasoningParser:
    tokenizer = Tokenizer(vocab or {"<think>": 1, "</think>": 2})
    return ReasoningParserManager.get_reasoning_parser(name)(tokenizer)


@pytest.mark.parametrize("name", MINIMAX)
@pytest.mark.parametrize(
    ("ids", "count"),
    [
        ([10, 11, 2, 20], 2),
        ([10, 11, 20], 3),
        ([2, 20], 0),
        ([], 0),
        ([1, 10, 2, 20], 2),
        ([10, 2, 11, 2, 12], 1),
    ],
)
def test_count(name, ids, count) -> None:
    assert parser(name).count_reasoning_tokens(ids) == count
    assert parser(name).count_reasoning_tokens(tuple(ids)) == count


def test_vocabulary_without_an_end_tag_has_no_reasoning() -> None:
    assert parser("minimax_m2_append_think", other=3).count_reasoning_tokens([10, 11]) == 0


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
def test_other_parsers_count_as_before(name) -> None:
    assert parser(name).count_reasoning_tokens([10, 1, 11, 12, 2, 13]) == 2
    assert parser(name).count_reasoning_tokens([10, 11, 2, 13]) == 0


def counting() -> list[str]:
    """The parsers that count and make do with a vocabulary; mistral's needs its own tokenizer."""
    names = [name for name in ReasoningParserManager.list_registered() if name != "mistral"]
    classes = {name: ReasoningParserManager.get_reasoning_parser(name) for name in names}
    base = ReasoningParser.count_reasoning_tokens
    return [name for name, kind in classes.items() if kind.count_reasoning_tokens is not base]


def test_usage_counts_in_pieces_as_parsers_count_at_once() -> None:
    """Our counters have vLLM's rules: any output, cut anywhere, gives the parser's own count."""
    rng = random.Random(9)
    vocab = {"<think>": 1, "</think>": 2, "<seed:think>": 1, "</seed:think>": 2}
    vocab |= {"<response>": 3, "</response>": 4, "\n": 5}
    names = counting()
    assert {*MINIMAX, "deepseek_r1", "ernie45", "nemotron_v3", "qwen3", "seed_oss"} <= {*names}
    for name in names:
        made = parser(name, **vocab)
        for _ in range(200):
            ids = [rng.choice((1, 2, 10, 11)) for _ in range(rng.randrange(20))]
            usage = ascend_runtime.usage.ReasoningUsage(made, 1)
            rest = ids
            while rest:
                cut = rng.randint(1, len(rest))
                usage.feed(0, rest[:cut], [1])
                rest = rest[cut:]
            expected = {"reasoning_tokens": made.count_reasoning_tokens(ids)}
            assert usage.details() == {"completion_tokens_details": expected}, (name, ids)


def responses(parser_name: str) -> OpenAIServingResponses:
    """The serving class of the Responses API, made without its constructor."""
    api = OpenAIServingResponses.__new__(OpenAIServingResponses)
    api.use_harmony = api.enable_auto_tools = api.enable_log_outputs = False
    api.tool_call_id_type = "random"
    api.parser = ParserManager.get_parser(reasoning_parser_name=parser_name)
    return api


@pytest.mark.parametrize(("name", "count"), [("minimax_m2", 3), ("deepseek_r1", 0)])
@pytest.mark.parametrize("streamed", [False, True])
def test_responses_api(name, count, streamed) -> None:
    script = Script(chunks_of([("ab", [10, 11]), ("c</think>", [12, 8]), ("d", [13])]))
    context = SimpleContext()
    vocab = {"</think>": 8, "<think>": 7}
    tools = {"<minimax:tool_call>": 3, "</minimax:tool_call>": 4}  # its parsers come together

    async def answer() -> object:
        async for output in script.play(stream=streamed):
            context.append_output(output)

        async def nothing_more() -> object:
            return
            yield

        return await responses(name).responses_full_generator(
            ResponsesRequest(model="m", input="?", store=False),
            SamplingParams(max_tokens=8),
            nothing_more(),
            context,
            "m",
            Tokenizer(vocab | tools),
            RequestResponseMetadata(request_id="r"),
        )

    response = asyncio.run(answer())
    assert response.usage.output_tokens == 5
    assert response.usage.output_tokens_details.reasoning_tokens == count
    reasoning, message = response.output
    assert reasoning.content[0].text == "abc"
    assert message.content[0].text == "d"
