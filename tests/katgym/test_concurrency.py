"""Coroutines run side by side; the first error comes as it is, and nothing goes on."""

from __future__ import annotations

import asyncio

import pytest

from katgym.concurrency import SharedResults, run_all


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


def test_a_result_is_made_once_for_all_who_wait_and_again_after_a_failure() -> None:
    made: list[str] = []

    async def make(key: str) -> str:
        made.append(key)
        await asyncio.sleep(0.01)
        if len(made) == 1:
            raise KeyError(key)
        return key.upper()

    async def go() -> list[str]:
        shared = SharedResults[str, str]()
        with pytest.raises(KeyError):
            await shared.get("a", lambda: make("a"))
        assert shared.finished() == []
        impatient = asyncio.create_task(shared.get("a", lambda: make("a")))
        await asyncio.sleep(0)
        impatient.cancel()
        results = await run_all(shared.get("a", lambda: make("a")) for _ in range(3))
        assert shared.finished() == ["A"]
        shared.forget("a")
        results.append(await shared.get("a", lambda: make("a")))
        return results

    assert asyncio.run(go()) == ["A"] * 4
    assert made == ["a"] * 3
