"""Many requests to a server at once, a part of which the client gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import openai
from server_kit import MODEL

#: How many tokens are asked for by those that stay, and by those that do not: had they not been
#: cancelled, they would be at work long after the others.
COUNT, LONG = 16, 160


async def _whole(client: openai.AsyncOpenAI, prompt: Sequence[int]) -> list[int]:
    reply = await client.completions.create(prompt=list(prompt), **_fields(COUNT))
    return list(reply.choices[0].token_ids)


async def _streamed(client: openai.AsyncOpenAI, prompt: Sequence[int]) -> list[int]:
    tokens: list[int] = []
    stream = await client.completions.create(prompt=list(prompt), stream=True, **_fields(COUNT))
    async for chunk in stream:
        tokens += chunk.choices[0].token_ids
    return tokens


async def _hung_up(client: openai.AsyncOpenAI, prompt: Sequence[int]) -> None:
    """Read the first token and close the connection."""
    stream = await client.completions.create(prompt=list(prompt), stream=True, **_fields(LONG))
    async with stream:
        async for _ in stream:
            return


async def _given_up(client: openai.AsyncOpenAI, prompt: Sequence[int]) -> None:
    """Close the connection before there is a reply: perhaps before the request has begun."""
    asked = client.completions.create(prompt=list(prompt), **_fields(LONG))
    try:
        await asyncio.wait_for(asked, 1)
    except TimeoutError:
        return
    raise AssertionError("the whole reply came within a second")


def _fields(count: int) -> dict:
    return {
        "model": MODEL,
        "max_tokens": count,
        "temperature": 0,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }


async def _all(address: str, prompts: Sequence[Sequence[int]]) -> list[list[int] | None]:
    kinds = (_whole, _hung_up, _streamed, _whole, _given_up, _streamed)
    async with openai.AsyncOpenAI(
        base_url=f"{address}/v1", api_key="-", max_retries=0, timeout=300
    ) as client:
        asked = [kinds[i % len(kinds)](client, prompt) for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*asked)


def storm(address: str, prompts: Sequence[Sequence[int]]) -> list[list[int] | None]:
    """Ask for all prompts at once; return the tokens, None where the request was cancelled."""
    return asyncio.run(_all(address, prompts))
