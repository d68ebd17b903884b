"""P9: the usage as text, over HTTP; that of those who do not count, and the one class of it."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import usage_playback
from http_kit import server
from patched_kit import HERE, module_name, python
from serving_kit import MODEL, Script, chunks_of, full, serving
from vllm.entrypoints.openai.engine import protocol
from vllm.entrypoints.openai.engine.protocol import RequestResponseMetadata, UsageInfo

NULL = ',"completion_tokens_details":null'
WORKED = chunks_of([("a", [10]), ("b</think>", [11, 8]), ("c", [12]), ("d", [13])])
TWO = [
    *chunks_of([("ab</think>cd", [10, 11, 8, 12, 13])], choice=0),
    *chunks_of([("a</think>c", [10, 8, 12])], choice=1),
]


def test_others_say_what_the_pristine_classes_say(base) -> None:
    """Not streamed, they show the new field as null, beside the old one; else nothing changes."""
    path = os.pathsep.join([str(base.root), str(HERE)])
    done = python(HERE / "usage_playback.py", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    pristine = json.loads(done.stdout)
    ours = usage_playback.chats() | usage_playback.others()
    assert list(ours) == list(pristine)
    for name, text in ours.items():
        assert text.count(NULL) == name.endswith("full"), name
        assert text.replace(NULL, "") == pristine[name], name
        assert "reasoning_tokens" not in text and "error" not in text, name
    details = '"prompt_tokens_details":{"cached_tokens":1}'
    assert f"{details}{NULL}}}" in ours["None full"]
    assert f"{details}}}" in ours["None stream last"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server({"worked": Script(WORKED), "two": Script(TWO)}, None, "minimax_m2") as address:
        yield address


def ask(script: str, **fields: object) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}]} | fields


def test_text_of_the_last_chunk(address) -> None:
    body = ask("worked", stream=True, stream_options={"include_usage": True})
    text = httpx.post(
        f"{address}/v1/chat/completions", json=body, headers={"X-Request-Id": "r"}
    ).text
    *_, last, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert re.sub(r'"created":\d+', '"created":0', last) == (
        'data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":0,"model":"scripted",'
        '"choices":[],"usage":{"prompt_tokens":2,"total_tokens":7,"completion_tokens":5,'
        '"completion_tokens_details":{"reasoning_tokens":2}}}'
    )
    assert text.count("usage") == 1


def test_text_of_the_response(address) -> None:
    text = httpx.post(f"{address}/v1/chat/completions", json=ask("two", n=2)).text
    assert (
        '"usage":{"prompt_tokens":2,"total_tokens":10,"completion_tokens":8,'
        '"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":3}},'
    ) in text
    chat = serving(reasoning_parser="minimax_m2", enable_prompt_tokens_details=True)
    assert (
        '"prompt_tokens_details":{"cached_tokens":1},'
        '"completion_tokens_details":{"reasoning_tokens":3}},'
    ) in full(chat, Script(TWO, cached_tokens=1), n=2).model_dump_json()


def test_official_client_reads_it(address) -> None:
    url = f"{address}/v1"
    with openai.OpenAI(base_url=url, api_key="-", max_retries=0, timeout=30) as client:
        whole = client.chat.completions.create(**ask("worked"))
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(
            client.chat.completions.create(**ask("worked", stream=True, stream_options=options))
        )
    assert whole.usage.completion_tokens_details.reasoning_tokens == 2
    told = [chunk.usage.completion_tokens_details.reasoning_tokens for chunk in chunks]
    assert told == [0, 1, 2, 2, 2, 2]


def test_everybody_has_the_same_class(installed) -> None:
    """All modules that import it, whichever came first."""
    imports = re.compile(r"^    UsageInfo,$|import .*\bUsageInfo\b", re.MULTILINE)
    files = [
        file.relative_to(installed.site).as_posix()
        for file in Path(installed.site, "vllm").rglob("*.py")
        if imports.search(file.read_text("utf-8"))
    ]
    assert len(files) == 17
    for path in files:
        assert importlib.import_module(module_name(path)).UsageInfo is UsageInfo, path
    assert UsageInfo.__module__ == protocol.__name__
    assert RequestResponseMetadata.model_fields["final_usage_info"].annotation == UsageInfo | None
    details = protocol.CompletionTokenUsageInfo
    assert UsageInfo.model_fields["completion_tokens_details"].annotation == details | None
    assert details().model_dump() == {"reasoning_tokens": 0}
    assert list(details.model_fields) == ["reasoning_tokens"]
