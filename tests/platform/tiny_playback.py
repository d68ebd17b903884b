"""Models that say given texts: what a server makes of a model's output is then known in advance.

GPT-2's position table points at the token that must follow; its layers add nothing. A text is told
by the number of tokens before it, so one model knows many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_models import save_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

#: Tokens of their own that stay in the text, as GLM's and MiniMax's models have them.
MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_FILLER = "<filler>"
_SIZE, _LOUD = 256, 30.0


@dataclass(frozen=True)
class Playback:
    """What a saved model is asked with, and the token ids that it answers with, by name."""

    folder: Path
    messages: Mapping[str, list[dict[str, str]]]
    answers: Mapping[str, list[int]]


def save(folder: Path, texts: Mapping[str, str], positions: int = 2048) -> Playback:
    """Write a model of `texts` and its tokenizer.

    After a text comes the end token. Chat messages of the tokenizer's template choose the text by
    the prompt's length; the template knows no tools, so tools in a request change nothing.
    """
    tokenizer = save_tokenizer(folder, markers=[*MARKERS, _FILLER])
    answers = {
        name: [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        for name, text in texts.items()
    }
    starts, messages = {}, {}
    start = len(_prompt(tokenizer, _say(1)))
    for name, answer in answers.items():
        messages[name] = _say(1 + start - len(_prompt(tokenizer, _say(1))))
        assert len(_prompt(tokenizer, messages[name])) == start
        starts[name] = start
        start += len(answer)
    if start > positions:
        raise ValueError(f"the texts need {start} positions, there are {positions}")
    vocabulary = len(tokenizer)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=positions,
            n_embd=_SIZE,
            n_layer=1,
            n_head=4,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randn(vocabulary, _SIZE, generator=chance)
    tokens = torch.nn.functional.normalize(tokens - tokens.mean(1, keepdim=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in (model.transformer.ln_f, model.transformer.h[0].ln_1):
            norm.weight.fill_(1)
        model.transformer.wte.weight.copy_(tokens)
        table = model.transformer.wpe.weight
        table.copy_(tokens[tokenizer.eos_token_id] * _LOUD)
        for name, answer in answers.items():
            first = starts[name] - 1  # the prompt's last token is followed by the first of these
            table[first : first + len(answer)] = tokens[answer] * _LOUD
    model.save_pretrained(folder)
    return Playback(folder, messages, answers)


def _say(fillers: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": _FILLER * fillers}]


def _prompt(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text)
    return ids
