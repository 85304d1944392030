"""Group commit: order, faults of one write, cancelled callers.

Not here: calls through a gateway (`tests/katgym/gateway/test_gateway_service.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest
from waiting import wait_until_async

from katgym import Turn
from katgym.errors import UsageError
from katgym.rollout_store.group_commit import GroupCommit
from katgym.rollout_store.records import SessionRecord, SessionStatus


def turn(call_id):
    return Turn(call_id=call_id, messages=[{"role": "user", "content": call_id}])


def run(store, work):
    async def go():
        writer = GroupCommit(store.connections)
        try:
            return await work(writer), writer
        finally:
            await writer.aclose()

    return asyncio.run(go())


@contextlib.contextmanager
def locked(store):
    path = store.connections.path
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_what_gathers_is_committed_together(store):
    async def work(writer):
        await writer.create_session(SessionRecord(session_id="s"))
        with locked(store):
            gathered = [
                asyncio.ensure_future(writer.append("s", [turn(f"c{i}")], first=i))
                for i in range(100)
            ]
            await wait_until_async(lambda: writer.busy_s, "the first group's transaction")
            assert not any(one.done() for one in gathered)
        await asyncio.gather(*gathered)

    _, writer = run(store, work)
    assert [t.call_id for t in store.turns("s")] == [f"c{i}" for i in range(100)]
    assert writer.num_writes == 101
    assert writer.num_commits <= 4


def test_a_faulty_write_takes_no_other_with_it(store):
    taken_up = []

    async def work(writer):
        await writer.create_session(SessionRecord(session_id="s"))
        with locked(store):
            first = asyncio.ensure_future(writer.append("s", [turn("a")]))
            await wait_until_async(lambda: writer.busy_s, "the first one's transaction")
            others = [
                writer.append("nobody", [turn("x")], on_commit=lambda: taken_up.append("x")),
                writer.append("s", [turn("b")], first=1, on_commit=lambda: taken_up.append("b")),
                writer.create_session(SessionRecord(session_id="s")),
                writer.append("s", [turn("d")], first=7),
                writer.update_session("s", status=SessionStatus.FINISHED),
            ]
            gathering = asyncio.gather(*others, return_exceptions=True)
            await wait_until_async(lambda: writer.num_waiting == 5, "the others to gather")
        await first
        return await gathering

    found, writer = run(store, work)
    assert [type(one) for one in found[:4]] == [UsageError, type(None), UsageError, UsageError]
    assert found[4].status is SessionStatus.FINISHED
    assert taken_up == ["b"]
    assert [t.call_id for t in store.turns("s")] == ["a", "b"]
    assert writer.last_error is None


def test_a_cancelled_write_is_committed_before_its_caller_ends(store):
    taken_up = []

    async def work(writer):
        await writer.create_session(SessionRecord(session_id="s"))
        with locked(store):
            task = asyncio.ensure_future(
                writer.append("s", [turn("a")], on_commit=lambda: taken_up.append("a"))
            )
            await wait_until_async(lambda: writer.busy_s, "its transaction")
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(store, work)
    assert taken_up == ["a"]
    assert len(store.turns("s")) == 1


def test_a_store_that_cannot_be_written_tells_everybody(store):
    async def work(writer):
        await writer.create_session(SessionRecord(session_id="s"))
        store.close()
        with pytest.raises(Exception, match="is closed"):
            await writer.append("s", [turn("a")])
        assert "is closed" in str(writer.last_error)

    run(store, work)
