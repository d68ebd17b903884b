"""P10b runs for every tool parser: vLLM's other ones, token by token, give what they gave."""

from __future__ import annotations

import json
import re

import pytest
from serving_kit import Tokenizer, chunks_of, full, serving, stream, tool

TOOLS = [tool("f", p="string", n="integer"), tool("g", p="string")]
F, G = '{"p": "a \\"b\\" é", "n": 3}', '{"p": "x"}'
QWEN = (
    '<tool_call>\n<function=f>\n<parameter=p>\na "b" é\n</parameter>\n<parameter=n>\n3\n'
    "</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=g>\n<parameter=p>\nx\n</parameter>\n</function>\n</tool_call>"
)
TEXTS = {
    "hermes": (
        f'<tool_call>\n{{"name": "f", "arguments": {F}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "g", "arguments": {G}}}\n</tool_call>'
    ),
    "qwen3_coder": QWEN,
    "qwen3_xml": QWEN,
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="p">a "b" é</parameter>\n'
        '<parameter name="n">3</parameter>\n</invoke>\n'
        '<invoke name="g">\n<parameter name="p">x</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    # It has streamed less than there is when the text ends.
    "llama3_json": f'{{"name": "f", "parameters": {F}}}',
    "kimi_k2": (
        "<|tool_calls_section_begin|>"
        f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{F}<|tool_call_end|>"
        f"<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{G}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "deepseek_v31": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{F}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>g<｜tool▁sep｜>{G}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
}
TOKEN = re.compile(r"<[/|｜]?[\w:▁]+[|｜]?>|\s*\w+|\s|.")
#: What the parsers look for in the vocabulary when they are made, beside the tokens of the text.
WANTED = ("<tool_call>", "</tool_call>", "<|python_tag|>")


class Words(Tokenizer):
    """Knows the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(text)
        known = dict.fromkeys([*self.tokens, *WANTED])
        super().__init__({token: number for number, token in enumerate(known, 20)})

    def encode(self, text: str, **_: object) -> list[int]:
        return [self.vocab[token] for token in TOKEN.findall(text)]

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(token for i in ids for token, number in self.vocab.items() if number == i)


@pytest.mark.parametrize("empty_end", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_arguments_are_whole_and_sent_once(name: str, empty_end: bool) -> None:
    tokenizer = Words(TEXTS[name])
    chat = serving(name, tokenizer=tokenizer)
    pieces = [(token, tokenizer.encode(token)) for token in tokenizer.tokens]
    chunks = chunks_of([*pieces, ("", (1,))] if empty_end else pieces)
    sent: dict[int, str] = {}
    for chunk in stream(chat, chunks, tools=TOOLS):
        for part in chunk["choices"][0]["delta"].get("tool_calls", []):
            arguments = part["function"].get("arguments") or ""
            sent[part["index"]] = sent.get(part["index"], "") + arguments
    calls = full(chat, chunks, tools=TOOLS).choices[0].message.tool_calls
    assert len(calls) == (1 if name == "llama3_json" else 2)
    # Some keep the end of the line behind the arguments.
    assert [text.rstrip() for text in sent.values()] == [F, G][: len(calls)]
    assert [c.function.arguments for c in calls] == [F, G][: len(calls)]
    assert json.loads(sent[0]) == {"p": 'a "b" é', "n": 3}


MERGED = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "longcat": ("<longcat_tool_call>", "</longcat_tool_call>"),
}


@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize(
    "cut",
    [
        ["", '\n{"name": "g", ', '"arguments": {"p": ', '"x"}}\n'],
        ["", '\n{"name": "g"', ', "arguments": {"p": ', '"x', '"}}\n'],
        ["", '\n{"name": "g"', ', "arguments": {"p": "x"', "}}\n"],
        ["", '\n{"name": "g"', ', "arguments": {"p": "x', '"}}\n'],
    ],
    ids=str,
)
def test_brace_of_the_call_in_the_last_delta_is_not_the_arguments(name: str, cut: list) -> None:
    """These parsers give it as a part of the arguments; upstream replaced the whole delta."""
    begin, end = MERGED[name]
    pieces = [begin + cut[0], *cut[1:-1], cut[-1] + end]
    tokenizer = Words("".join(pieces))
    chunks = chunks_of([(piece, tokenizer.encode(piece)) for piece in pieces])
    arguments = ""
    for chunk in stream(serving(name, tokenizer=tokenizer), chunks, tools=TOOLS):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                arguments += (call.get("function") or {}).get("arguments") or ""
    assert arguments == G
