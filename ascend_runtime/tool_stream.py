"""Tool calls in a stream: all events of a delta at once, and no arguments that never go out.

Messages are vLLM's pydantic objects (`DeltaMessage` and what is in it), taken as they come: nothing
here imports vLLM. They are changed in place and field by field, so that a field that nobody set
stays unset and is not sent as null.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

#: A JSON string, closed or cut off, or else white space.
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|\s+', re.DOTALL)


def drained(extract: Callable[..., Any]) -> Callable[..., Any]:
    """Make a parser's `extract_tool_calls_streaming` return all events of a delta as one message.

    `extract` must keep the text that it has not used, return one event a call, and None when it
    needs more text; an empty delta then asks for the next event. A parser whose attribute `drain`
    is False gives one event a call, as without the decorator.
    """

    @functools.wraps(extract)
    def extract_all(
        self: Any,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> Any:
        texts = previous_text, current_text, delta_text
        ids = previous_token_ids, current_token_ids, delta_token_ids
        message = event = extract(self, *texts, *ids, request)
        # From now on nothing is new: the delta is part of what came before.
        texts, ids = (current_text, current_text, ""), (current_token_ids, current_token_ids, [])
        while event is not None and getattr(self, "drain", True):
            event = extract(self, *texts, *ids, request)
            if event is not None:
                message = merge_delta_messages(message, event)
        return message

    return extract_all


def one_event_per_call(parser: Any) -> None:
    """Have a `drained` parser return its events one by one; other parsers do so or not anyway."""
    parser.drain = False


def merge_delta_messages(first: Any, then: Any) -> Any:
    """Add the message `then` to the message `first`, and return `first`.

    Content and reasoning are appended. Tool calls are matched by their index: arguments are
    appended; an id, a type or a name that is not None takes the place of the one before. Calls with
    a new index come last.
    """
    for name in ("content", "reasoning"):
        more = getattr(then, name)
        if more is not None:
            setattr(first, name, (getattr(first, name) or "") + more)
    known = {call.index: call for call in first.tool_calls}
    new = []
    for call in then.tool_calls:
        if call.index in known:
            _merge_calls(known[call.index], call)
        else:
            known[call.index] = call
            new.append(call)
    if new:  # assigned, since a list that is only appended to would count as unset
        first.tool_calls = [*first.tool_calls, *new]
    return first


def _merge_calls(first: Any, then: Any) -> None:
    for name in ("id", "type"):
        if getattr(then, name) is not None:
            setattr(first, name, getattr(then, name))
    if then.function is None:
        return
    if first.function is None:
        first.function = then.function
        return
    if then.function.name is not None:
        first.function.name = then.function.name
    if then.function.arguments is not None:
        first.function.arguments = (first.function.arguments or "") + then.function.arguments


def compact_json_fragment(fragment: str) -> str:
    """Return the beginning of a JSON text without the white space between its tokens.

    The text may end anywhere, also within a string, whose white space stays.
    """
    return _STRING_OR_SPACE.sub(lambda match: match[1] or "", fragment)


def remaining_args(expected: Any, sent: str) -> str | None:
    """Return what must follow the JSON text `sent` to make it the arguments `expected`.

    `expected` is the arguments object, or a JSON text of it. What was sent may be formatted in
    another way than `json.dumps` does; then the rest is compact. "" if nothing is missing, None if
    `sent` is not the beginning of these arguments.
    """
    if isinstance(expected, str):
        texts = [expected]
        with contextlib.suppress(ValueError):  # a text that was cut off
            texts.append(_dumps(json.loads(expected)))
    else:
        texts = [_dumps(expected)]
    start = compact_json_fragment(sent)
    for text in texts:
        if text.startswith(sent):
            return text[len(sent) :]
        compact = compact_json_fragment(text)
        if compact.startswith(start):
            return compact[len(start) :]
    return None


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def record_sent_args(delta: Any, sent: dict[int, str]) -> None:
    """Add the arguments that a message carries to those `sent` before, by the call's index."""
    for call in delta.tool_calls:
        if call.function is not None and call.function.arguments:
            sent[call.index] = sent.get(call.index, "") + call.function.arguments


def append_unsent_args(delta: Any, index: int, expected: Any, sent: str) -> None:
    """Add to a choice's last message what its call `index` still lacks.

    `expected` are the arguments of the call as for `remaining_args`, `sent` is the text of them
    that went out before this message. Nothing is added where what was sent is not the beginning of
    `expected`. What the message itself carries of the call stays, unless it would spoil arguments
    that can still become right: some parsers take the brace that ends the whole call for a part of
    its arguments, or lose a quotation mark. The message has at least one tool call.
    """
    calls = [call for call in delta.tool_calls if call.index == index]
    functions = [call.function for call in calls if call.function is not None]
    own = "".join(function.arguments or "" for function in functions)
    text = sent + own
    rest = remaining_args(expected, text)
    if rest is None and not _is_json(text) and not _goes_beyond(text, expected):
        rest = remaining_args(expected, sent)
        if rest is None:
            return
        for function in functions:
            function.arguments = None if function.arguments is None else ""
    if not rest:
        return
    if functions:
        functions[-1].arguments = (functions[-1].arguments or "") + rest
        return
    call = type(delta.tool_calls[0])(index=index, function={"arguments": rest})
    if calls:
        calls[-1].function = call.function
    else:
        delta.tool_calls = [*delta.tool_calls, call]


def _goes_beyond(text: str, expected: Any) -> bool:
    """Whether the parser's record of the arguments is older than the text: it has less of them."""
    known = expected if isinstance(expected, str) else _dumps(expected)
    known = compact_json_fragment(known).rstrip('"]}')
    text = compact_json_fragment(text)
    return text.startswith(known) and text[len(known) :].strip('"]}') != ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def begun_calls_first(events: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """Give a chat completion stream to a reader for whom content ends the call before it.

    One event may carry the rest of a call and content that came after it, and such a reader, which
    takes the content of an event first, could no longer place the rest. So the event is made two.
    """
    async for event in events:
        for part in _split(event):
            yield part


def _split(event: str) -> list[str]:
    if '"tool_calls"' not in event:  # most events, and the last one, which is not JSON
        return [event]
    chunk = json.loads(event.removeprefix("data:"))
    choices = chunk.get("choices") or []
    if len(choices) != 1:
        return [event]
    choice, delta = choices[0], choices[0]["delta"]
    calls = delta.get("tool_calls") or []
    begun = [call for call in calls if not call.get("id")]
    if not begun or not (delta.get("content") or delta.get("reasoning")):
        return [event]
    rest = {**delta, "tool_calls": [call for call in calls if call.get("id")]}
    parts = (
        {**choice, "delta": {"tool_calls": begun}, "finish_reason": None},
        {**choice, "delta": rest},
    )
    return [f"data: {_dumps({**chunk, 'choices': [part]})}\n\n" for part in parts]
