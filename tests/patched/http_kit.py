"""Serves scripted outputs over HTTP: vLLM's own application and routes on the loopback interface.

What the user says in a request names the script that is played for it.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

import uvicorn
from serving_kit import MODEL, Script, serving
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams


class ScriptedEngine:
    """Stands where the client of an engine would."""

    errored = False

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.scripts = scripts

    async def is_tracing_enabled(self) -> bool:
        return False

    def generate(
        self, prompt: dict, params: SamplingParams, request_id: str, **_: object
    ) -> AsyncIterator[RequestOutput]:
        """Give deltas or one final output, as the request asks for."""
        stream = params.output_kind is RequestOutputKind.DELTA
        return self.scripts[prompt["prompt"]].play(request_id, stream=stream)


async def _render(request: ChatCompletionRequest) -> tuple[list, list[dict]]:
    """Take the last message for the prompt, without a template and a tokenizer."""
    said = request.messages[-1]["content"]
    return [], [{"type": "token", "prompt": said, "prompt_token_ids": [1, 2]}]


def _handler(kind: type[OpenAIServingChat], engine: ScriptedEngine, *parsers: str) -> object:
    models = SimpleNamespace(lora_requests={}, model_name=lambda _: MODEL)
    models.is_base_model = lambda name: name == MODEL
    return serving(
        *parsers,
        kind=kind,
        engine_client=engine,
        models=models,
        model_config=SimpleNamespace(max_model_len=1000, is_encoder_decoder=False),
        default_sampling_params={},
        override_max_tokens=None,
        render_chat_request=_render,
        stop_reason_map={"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"},
    )


@contextmanager
def server(scripts: Mapping[str, Script], *parsers: str) -> Iterator[str]:
    """Serve chat completions and messages with these parsers; give the address."""
    app = build_app(Namespace(**vars(FrontendArgs(root_path=""))), ("generate",))
    engine = ScriptedEngine(scripts)
    app.state.openai_serving_chat = _handler(OpenAIServingChat, engine, *parsers)
    app.state.anthropic_serving_messages = _handler(AnthropicServingMessages, engine, *parsers)
    # Without vLLM's lifespan, which freezes the garbage collector's heap.
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not runner.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        port = runner.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        runner.should_exit = True
        thread.join(30)
