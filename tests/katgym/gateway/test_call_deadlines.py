"""What a session's deadline counts, in time that passes only while all wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from idle_loop import run_idle

from katgym.gateway.conversation import Conversation
from katgym.gateway.session_table import LiveSession
from katgym.policies.waiting import excuse_since, waiting
from katgym.rollout_store.records import SessionRecord
from katgym.system.steady_clock import SteadyClock


class LoopClock(SteadyClock):
    """The gateway's clock by the event loop's time."""

    def now_s(self) -> float:
        return 1000.0 + asyncio.get_running_loop().time()


def make_session(timeout_s: float | None) -> LiveSession:
    record = SessionRecord(session_id="s", created_s=1000.0, key_sha256="")
    deadline_s = None if timeout_s is None else 1000.0 + timeout_s
    return LiveSession(record=record, conversation=Conversation(), deadline_s=deadline_s)


async def call(session: LiveSession, *, waits_s: float = 0.0, fails_s: float = 0.0,
               answers_s: float = 0.0) -> None:  # fmt: skip
    async with session.within_deadline(LoopClock()):
        with waiting():
            await asyncio.sleep(waits_s)
        if fails_s:
            began_s = asyncio.get_running_loop().time()
            await asyncio.sleep(fails_s)
            excuse_since(began_s)
        await asyncio.sleep(answers_s)


async def one(session: LiveSession) -> None:
    await call(session, waits_s=60.0, fails_s=1.0, answers_s=1.5)
    session.check_open(LoopClock().now_s())
    await call(session, waits_s=60.0, answers_s=1.0)


async def side_by_side(session: LiveSession) -> None:
    """They wait in the same pause, which counts once for both."""
    await asyncio.gather(*(call(session, waits_s=30.0 - n, answers_s=1.5 + n) for n in range(2)))
    assert session.deadline_s == pytest.approx(1000.0 + 3.0 + 30.0)
    await call(session, waits_s=60.0, answers_s=1.0)


@pytest.mark.parametrize("calls", [one, side_by_side])
def test_waiting_moves_a_sessions_deadline_and_answering_does_not(
    calls: Callable[[LiveSession], Coroutine[Any, Any, None]],
) -> None:
    run_idle(calls(make_session(3.0)))
    with pytest.raises(TimeoutError):
        run_idle(calls(make_session(2.4)))


def test_a_session_without_a_deadline_has_none_afterwards() -> None:
    session = make_session(None)
    run_idle(one(session))
    assert session.deadline_s is None
