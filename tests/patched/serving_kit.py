"""Drives vLLM's own chat serving class with scripted outputs in the place of an engine.

The class is made without its constructor, which wants a model; everything that it does with the
outputs of an engine is vLLM's: parsers, deltas, finish reasons, usage.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.engine.protocol import RequestResponseMetadata
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

MODEL = "scripted"


class Tokenizer:
    """A vocabulary and nothing else: scripted outputs come as text and token ids."""

    def __init__(self, vocab: dict[str, int] | None = None) -> None:
        """Know the tokens of `vocab`, or those that the parsers ask for when they are made."""
        tokens = ("<think>", "</think>", "<tool_call>", "</tool_call>")
        self.vocab = dict(zip(tokens, (7, 8, 9, 6), strict=True)) if vocab is None else vocab

    def get_vocab(self) -> dict[str, int]:
        return self.vocab


@dataclass(frozen=True)
class Chunk:
    """What the engine gives in one step for one choice: its new text and token ids."""

    text: str
    ids: Sequence[int] = ()
    finish: str | None = None
    choice: int = 0


def chunks_of(
    texts: Iterable[str | tuple[str, Sequence[int]]], finish: str | None = "stop", choice: int = 0
) -> list[Chunk]:
    """Make chunks of texts or of (text, token ids), the last one with the finish reason.

    A text without ids gets one id, which stands for no token of interest.
    """
    pairs = [(text, (1,)) if isinstance(text, str) else text for text in texts]
    last = len(pairs) - 1
    return [
        Chunk(text, ids, finish if number == last else None, choice)
        for number, (text, ids) in enumerate(pairs)
    ]


def joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return one chunk for each choice: what the engine gives when nothing is streamed."""
    choices = sorted({chunk.choice for chunk in chunks})
    own = {choice: [c for c in chunks if c.choice == choice] for choice in choices}
    return [
        Chunk(
            "".join(c.text for c in mine),
            [i for c in mine for i in c.ids],
            mine[-1].finish,
            choice,
        )
        for choice, mine in own.items()
    ]


@dataclass
class Script:
    """Outputs as an engine would give them: a `RequestOutput` for each chunk, or one for all."""

    chunks: Sequence[Chunk]
    prompt_ids: Sequence[int] = (1, 2)
    cached_tokens: int | None = None
    #: Ids of the requests that it was played for.
    played: list[str] = field(default_factory=list)

    async def play(self, request_id: str = "r", *, stream: bool) -> AsyncIterator[RequestOutput]:
        """Give the outputs, as deltas or as one final output."""
        self.played.append(request_id)
        steps = [[chunk] for chunk in self.chunks] if stream else [joined(self.chunks)]
        for number, step in enumerate(steps):
            await asyncio.sleep(0)  # as an engine lets others run
            yield RequestOutput(
                request_id,
                "",
                list(self.prompt_ids),
                None,
                [
                    CompletionOutput(
                        chunk.choice, chunk.text, list(chunk.ids), None, None, None, chunk.finish
                    )
                    for chunk in step
                ],
                finished=number == len(steps) - 1,
                num_cached_tokens=self.cached_tokens,
            )


def serving(
    tool_parser: str | type | None = None,
    reasoning_parser: str | None = None,
    tokenizer: Tokenizer | None = None,
    kind: type[OpenAIServingChat] = OpenAIServingChat,
    **attributes: object,
) -> OpenAIServingChat:
    """Return the serving class with parsers by name (or a class), and attributes of one's own.

    `kind` may be a subclass of it.
    """
    chat: Any = kind.__new__(kind)
    if isinstance(tool_parser, str):
        tool_parser = ToolParserManager.get_tool_parser(tool_parser)
    chat.tool_parser = tool_parser
    chat.reasoning_parser_cls = reasoning_parser and ReasoningParserManager.get_reasoning_parser(
        reasoning_parser
    )
    chat.enable_auto_tools = tool_parser is not None
    chat.exclude_tools_when_tool_choice_none = False
    chat.use_harmony = False
    chat.tool_call_id_type = "random"
    chat.response_role = "assistant"
    chat.enable_force_include_usage = False
    chat.enable_prompt_tokens_details = False
    chat.enable_log_outputs = False
    chat.enable_log_deltas = True
    chat.request_logger = None
    chat.default_chat_template_kwargs = {}
    chat.renderer = SimpleNamespace(tokenizer=tokenizer or Tokenizer())
    for name, value in attributes.items():
        setattr(chat, name, value)
    return chat


def tool(name: str, **types: str) -> dict:
    """Return a tool of the request; the keywords are its parameters and their JSON types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def chat_request(**fields: object) -> ChatCompletionRequest:
    """Return a request; the keywords are fields of the API."""
    messages = [{"role": "user", "content": "?"}]
    return ChatCompletionRequest(**{"model": MODEL, "messages": messages} | fields)


def _arguments(chat: OpenAIServingChat, request: ChatCompletionRequest, script: Script) -> dict:
    make = chat.reasoning_parser_cls
    return {
        "request": request,
        "result_generator": script.play(stream=bool(request.stream)),
        "request_id": "r",
        "model_name": MODEL,
        "conversation": [],
        "tokenizer": chat.renderer.tokenizer,
        "request_metadata": RequestResponseMetadata(request_id="r"),
        "reasoning_parser": make(chat.renderer.tokenizer) if make else None,
    }


def stream(
    chat: OpenAIServingChat,
    script: Script | Sequence[Chunk],
    metadata: list | None = None,
    **fields: object,
) -> list[dict]:
    """Play a script through the streaming generator and return its chunks as sent, but [DONE].

    `fields` are those of the request. The request's metadata, as the server's middleware gets it,
    is appended to `metadata`.
    """
    arguments = _arguments(chat, chat_request(stream=True, **fields), _script(script))

    async def collect() -> list[str]:
        return [event async for event in chat.chat_completion_stream_generator(**arguments)]

    events = asyncio.run(collect())
    if metadata is not None:
        metadata.append(arguments["request_metadata"])
    assert events.pop() == "data: [DONE]\n\n"
    assert all(event.startswith("data: ") and event.endswith("\n\n") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def full(
    chat: OpenAIServingChat,
    script: Script | Sequence[Chunk],
    metadata: list | None = None,
    **fields: object,
) -> Any:
    """Play a script through the generator without streaming and return vLLM's response object."""
    arguments = _arguments(chat, chat_request(**fields), _script(script))
    response = asyncio.run(chat.chat_completion_full_generator(**arguments))
    if metadata is not None:
        metadata.append(arguments["request_metadata"])
    return response


def _script(script: Script | Sequence[Chunk]) -> Script:
    return script if isinstance(script, Script) else Script(script)
