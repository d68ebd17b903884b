"""Usage as other models and endpoints tell it, as JSON text; also runs on the pristine vLLM."""

from __future__ import annotations

import json
from types import SimpleNamespace

from serving_kit import Script, chunks_of, full, serving, stream
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.completion.protocol import (
    CompletionResponse,
    CompletionResponseChoice,
)
from vllm.entrypoints.openai.engine.protocol import PromptTokenUsageInfo, UsageInfo
from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponse

#: Two choices, one of which holds what a parser takes for reasoning.
SCRIPT = Script(
    [
        *chunks_of([("<think>a", [7, 10]), ("</think>b", [8, 11])], choice=0),
        *chunks_of([("c", [12]), ("d", [13])], choice=1),
    ],
    cached_tokens=1,
)
STREAMS = {
    "continuous": {"include_usage": True, "continuous_usage_stats": True},
    "last": {"include_usage": True},
    "none": {},
}
#: No parser, and those that cannot count and make do with a vocabulary.
PARSERS = (None, "deepseek_v3", "glm45", "granite", "kimi_k2", "step3")


def chats() -> dict[str, str]:
    """Chat completions at the time 0, streamed and not, of parsers that do not count."""
    answers = {}
    clock = chat_serving.time
    chat_serving.time = SimpleNamespace(time=lambda: 0)
    try:
        for parser in PARSERS:
            chat = serving(reasoning_parser=parser, enable_prompt_tokens_details=True)
            answers[f"{parser} full"] = full(chat, SCRIPT, n=2).model_dump_json()
            for name, options in STREAMS.items():
                chunks = stream(chat, SCRIPT, n=2, stream_options=options)
                # The order of fields is that of the text.
                answers[f"{parser} stream {name}"] = json.dumps(chunks, separators=(",", ":"))
    finally:
        chat_serving.time = clock
    return answers


def others() -> dict[str, str]:
    """The usage by itself, and within the responses of other endpoints."""
    usage = UsageInfo(prompt_tokens=2, completion_tokens=3, total_tokens=5)
    cached = usage.model_copy()
    cached.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=1)
    choice = CompletionResponseChoice(index=0, text="a")
    completion = CompletionResponse(id="r", created=0, model="m", choices=[choice], usage=usage)
    embedding = EmbeddingResponse(id="r", created=0, model="m", data=[], usage=cached)
    return {
        "usage full": usage.model_dump_json(),
        "usage stream": usage.model_dump_json(exclude_unset=True),
        "cached stream": cached.model_dump_json(exclude_unset=True, exclude_none=True),
        "default stream": UsageInfo().model_dump_json(exclude_unset=True),
        "completion full": completion.model_dump_json(),
        "completion stream": completion.model_dump_json(exclude_unset=True),
        "embedding full": embedding.model_dump_json(),
    }


if __name__ == "__main__":
    print(json.dumps(chats() | others()))
