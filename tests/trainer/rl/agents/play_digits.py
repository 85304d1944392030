"""Plays groups of sessions through a gateway until it is ended, with agents of OpenAI's SDK.

    KATGYM_GATEWAY_URL=... KATGYM_GATEWAY_KEY=... python play_digits.py GROUP_SIZE NUM_AT_ONCE

An agent takes two turns, which are worth the share of its characters that are digits.
Every fifth group is followed by a held-out session.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import openai

from katgym.gateway import GatewayClient

HELD_OUT_EVERY = 5
"""Groups between two held-out sessions."""


async def answers(client: openai.AsyncOpenAI, question: str) -> str:
    """Return what the agent said in its two turns."""
    messages = [{"role": "user", "content": question}]
    said = ""
    for more in ("More!", ""):
        completion = await client.chat.completions.create(
            model="any", messages=messages, max_tokens=8
        )
        text = completion.choices[0].message.content or ""
        said += text
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": more}]
    return said


async def episode(gateway: GatewayClient, question: str, **options: object) -> None:
    async with gateway.session(**options) as session:
        async with openai.AsyncOpenAI(
            base_url=session.openai_base_url, api_key=session.key
        ) as client:
            said = await answers(client, question)
        await session.reward(sum(c.isdigit() for c in said) / max(1, len(said)))


async def player(gateway: GatewayClient, numbers: itertools.count[int], group_size: int) -> None:
    """Play group after group."""
    while True:
        number = next(numbers)
        question = f"Digits {number % 7}!"
        async with asyncio.TaskGroup() as tasks:
            for _ in range(group_size):
                tasks.create_task(episode(gateway, question, group_id=f"group-{number}"))
        if number % HELD_OUT_EVERY == 0:
            await episode(gateway, question, metadata={"is_held_out": True})


async def main(group_size: int, num_at_once: int) -> None:
    numbers = itertools.count()
    async with GatewayClient() as gateway, asyncio.TaskGroup() as tasks:
        for _ in range(num_at_once):
            tasks.create_task(player(gateway, numbers, group_size))


asyncio.run(main(*map(int, sys.argv[1:])))
