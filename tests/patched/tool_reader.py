"""Reads a streamed reply as a strict client does: it takes nothing twice and nothing late."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random


@dataclass
class Call:
    """A tool call put together from its deltas."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Reply:
    """A choice put together from its deltas; adding one that breaks the protocol fails."""

    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None

    def add(self, delta: dict) -> None:
        """Take a delta as it was sent."""
        assert self.finish is None, "a delta after the end"
        assert None not in delta.values(), f"null for a field that is not set: {delta}"
        self.content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            self._add_call(**call)

    def _add_call(self, index: int, function: dict, **rest: str) -> None:
        assert None not in [*rest.values(), *function.values()], "null for a field that is not set"
        if index == len(self.calls):
            assert set(rest) == {"id", "type"}, f"a call begins with {rest}"
            assert rest["type"] == "function"
            assert function["name"]
            assert rest["id"] not in [call.id for call in self.calls]
            self.calls.append(Call(rest["id"], function["name"]))
        else:
            assert index < len(self.calls), f"call {index} is the {len(self.calls)}th"
            assert not rest, f"a begun call gets {rest} again"
            assert set(function) == {"arguments"}, f"a begun call gets {function}"
        self.calls[index].arguments += function["arguments"]

    @property
    def arguments(self) -> list[str]:
        """The arguments of each call."""
        return [call.arguments for call in self.calls]

    @property
    def named_arguments(self) -> list[tuple[str, str]]:
        """Name and arguments of each call."""
        return [(call.name, call.arguments) for call in self.calls]


def read(chunks: Sequence[dict], choice: int = 0) -> Reply:
    """Read one choice of a chat stream; the first chunk is the one with the role."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    assert choices.pop(0)["delta"] == {"role": "assistant", "content": ""}
    reply = Reply()
    for part in choices:
        reply.add(part["delta"])
        reply.finish = part["finish_reason"]
    assert reply.finish is not None
    return reply


def cut(text: str, points: Iterable[int]) -> list[str]:
    """Cut a text at these offsets."""
    edges = [0, *sorted(points), len(text)]
    return [text[a:z] for a, z in pairwise(edges)]


def partition(text: str, random: Random) -> list[str]:
    """Cut a text at random: into a few pieces, or into about as many as there are tokens."""
    points = random.randint(0, random.choice((2, 6, len(text) // 3)))
    return cut(text, random.sample(range(1, len(text)), points))


def tokens(text: str) -> list[str]:
    """Cut a text as GLM's tokenizer roughly would: tags whole, words with the blank before them."""
    return re.findall(r"</?(?:tool_call|arg_key|arg_value)>|\s*\w+|\s|.", text)
