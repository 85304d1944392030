"""Group commit: one thread that writes for an event loop, in one transaction what has gathered.

A caller waits for its own record alone, the loop for nothing: not for the disk, not for another
process that holds the database.

Not here: transactions of callers that may block (`connections.py`); statements (`live.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from katgym.errors import UsageError
from katgym.play.rollout import Turn
from katgym.rollout_store import live
from katgym.rollout_store.connections import Connections
from katgym.rollout_store.records import FailedCall, SessionRecord
from katgym.system.concurrency import wait_out

MAX_GROUP = 256
"""Writes of one transaction."""
_MIN_PROBE_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class _Write:
    """One caller's part of a transaction."""

    future: asyncio.Future[Any]
    prepare: Callable[[], live.Encoded | None]
    """Called before the transaction begins; what it returns is written first."""
    run: Callable[[sqlite3.Connection], Any]
    on_commit: Callable[[], None]
    """Called in the loop, before its caller goes on."""
    encoded: live.Encoded | None = None
    result: Any = None
    error: BaseException | None = None


class GroupCommit:
    """Writes to a store from one event loop; each method returns once its record is committed.

    A write whose caller is cancelled is committed all the same, and the caller waits for that.
    Writes are committed in the order in which they came; one that fails takes no other with it.

    Example:
        writer = GroupCommit(store.connections)
        await writer.append("s1", [turn])
        await writer.aclose()
    """

    def __init__(self, connections: Connections) -> None:
        self.num_commits = 0
        self.num_writes = 0
        self.last_error: BaseException | None = None
        """Of a transaction, where the store was at fault; None once as much has been written."""
        self._failed_bytes = 0
        self.largest_bytes = 0
        """Of ids, log-probs and text of one write."""
        self._began_s: float | None = None
        self._connections = connections
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def num_waiting(self) -> int:
        """Writes that wait for their transaction to begin."""
        return self._queue.qsize()

    @property
    def busy_s(self) -> float:
        """Seconds that the transaction under way has taken; 0 without one."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    async def append(
        self,
        session_id: str,
        turns: Sequence[Turn],
        failed: Sequence[FailedCall] = (),
        *,
        first: int = 0,
        on_commit: Callable[[], None] = lambda: None,
        is_large: bool = False,
    ) -> None:
        """Add turns and failed calls; see `RolloutStore.append`.

        on_commit: called once they are committed, also where the caller has been cancelled.
        is_large: they take long to encode, which no other write is to wait for.
        """
        prepare = partial(live.encode, session_id, first, turns, failed)
        if is_large:
            encoded = await asyncio.to_thread(prepare)
            await self._submit(lambda _: None, prepare=lambda: encoded, on_commit=on_commit)
        else:
            await self._submit(lambda _: None, prepare=prepare, on_commit=on_commit)

    async def create_session(self, record: SessionRecord) -> None:
        """Begin a session; see `RolloutStore.create_session`."""
        await self._submit(partial(live.create_session, record=record))

    async def update_session(self, session_id: str, **changes: Any) -> SessionRecord:
        """Change fields of a session, and return it; see `RolloutStore.update_session`."""
        record: SessionRecord = await self._submit(
            partial(live.update_session, session_id=session_id, changes=changes)
        )
        return record

    async def probe(self) -> None:
        """Write as much as could not be written, and take it back; raises what is in the way."""
        num_bytes = self._failed_bytes
        await self._submit(partial(live.take_room, num_bytes=num_bytes))
        if self._failed_bytes <= num_bytes:
            self.last_error, self._failed_bytes = None, 0

    async def aclose(self) -> None:
        """Commit what has gathered and end the thread; may be called twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)

    async def _submit(
        self,
        run: Callable[[sqlite3.Connection], Any],
        *,
        prepare: Callable[[], live.Encoded | None] = lambda: None,
        on_commit: Callable[[], None] = lambda: None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_all, args=(loop,), name="rollout-store-writer", daemon=True
            )
            self._thread.start()
        write = _Write(loop.create_future(), prepare, run, on_commit)
        self._queue.put(write)
        return await wait_out(write.future)

    # ---- the thread

    def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        is_over = False
        while not is_over:
            group = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(group) < MAX_GROUP:
                    group.append(self._queue.get_nowait())
            is_over = None in group
            writes = [write for write in group if write is not None]
            ready = []
            for write in writes:
                try:
                    write.encoded = write.prepare()
                    ready.append(write)
                except Exception as e:  # carried to whoever waits for it
                    write.error = e
            if ready:
                self._began_s = time.monotonic()
                self._commit(ready)
                self._began_s = None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, writes)

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Write a group in one transaction; with a faulty one in it, each in its own."""
        sizes = [0 if write.encoded is None else write.encoded.num_bytes for write in writes]
        num_bytes = sum(sizes)
        try:
            with self._connections.write() as connection:
                for write in writes:
                    if write.encoded is not None:
                        live.append(connection, write.encoded)
                    write.result = write.run(connection)
        except Exception as e:  # carried to whoever waits for it
            is_own = isinstance(e, UsageError)  # of one write, not of the store
            if is_own and len(writes) > 1:
                for write in writes:
                    self._commit([write])
                return
            if not is_own:
                self.last_error = e
                self._failed_bytes = max(self._failed_bytes, num_bytes, _MIN_PROBE_BYTES)
            for write in writes:
                write.error = e
            return
        if num_bytes >= self._failed_bytes:
            self.last_error, self._failed_bytes = None, 0
        self.num_commits += 1
        self.num_writes += len(writes)
        self.largest_bytes = max(self.largest_bytes, *sizes)
        self._connections.written(num_bytes)


def _settle(writes: Sequence[_Write]) -> None:
    for write in writes:
        if write.error is not None:
            write.future.set_exception(write.error)
            continue
        write.on_commit()
        write.future.set_result(write.result)
