"""Coroutines run side by side; the first error comes as it is, and nothing goes on."""

from __future__ import annotations

import asyncio

import pytest

from katgym.concurrency import run_all


def test_results_come_in_order_and_the_work_overlaps() -> None:
    async def meet(number: int, barrier: asyncio.Barrier) -> int:
        await barrier.wait()  # nobody gets past it alone
        return number

    async def go() -> list[int]:
        barrier = asyncio.Barrier(3)
        return await run_all(meet(i, barrier) for i in range(3))

    assert asyncio.run(go()) == [0, 1, 2]
    assert asyncio.run(run_all(())) == []


def test_the_first_error_is_raised_as_it_is_once_the_others_have_ended() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(run_all([wait(), run_all([wait(), fail()])]))
    assert ended == [1, 1]
