"""Coroutines side by side with errors that stay what they are, alone or in turn; results that
several wait for, threads that nobody has to wait for, and event loops that outlive their callers'.

Not here: running coroutines from synchronous code (`sync.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Generic, ParamSpec, TypeVar

from katgym.errors import InfrastructureError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
P = ParamSpec("P")


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side and return their results in order.

    When one raises, the others are cancelled, and after their end its error is raised as it is, not
    in an `ExceptionGroup`, so that callers can tell it by its type.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def wait_out(future: asyncio.Future[T]) -> T:
    """Return a future's result; a caller that is cancelled waits for it and is cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as e:
            cancelled = e
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved: its caller is told of the other
        raise cancelled
    return future.result()


class Gate:
    """Lets work through side by side, or one alone, in the order in which it came.

    async with gate.shared():
        ...
    async with gate.alone():
        ...

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._entry = asyncio.Lock()
        self._num_inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Work beside others that are let through so."""
        async with self._entry:
            self._num_inside += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Work while nothing else does."""
        async with self._entry:
            await self._is_empty.wait()
            yield


class Turns:
    """Has numbered callers go on one after the other, 0 first, in whichever order they come.

    await turns.wait(2)  # until 0 and 1 have ended theirs
    turns.end(2)

    Every number is ended, whether its turn was used or not. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._next = 0
        self._ended: set[int] = set()
        self._waiting: dict[int, asyncio.Event] = {}

    async def wait(self, number: int) -> None:
        """Wait until all lower numbers have ended their turns."""
        if number > self._next:
            await self._waiting.setdefault(number, asyncio.Event()).wait()

    def end(self, number: int) -> None:
        """End a turn, or give it up; may be called twice."""
        self._ended.add(number)
        while self._next in self._ended:
            self._ended.remove(self._next)
            self._next += 1
        if self._next in self._waiting:
            self._waiting.pop(self._next).set()


class SharedResults(Generic[K, T]):
    """What several callers wait for, made once for each key, and again after it failed.

    Belongs to one event loop at a time. A caller that is cancelled leaves the others their result.
    """

    def __init__(self) -> None:
        self._making: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a key; `make` is called if nobody else did, or it failed."""
        known = self._making.get(key)
        if known is None or (known.done() and (known.cancelled() or known.exception())):
            known = self._making[key] = asyncio.create_task(make())
        return await asyncio.shield(known)

    def list_finished(self) -> list[T]:
        """Return the results that are there."""
        tasks = [t for t in self._making.values() if t.done() and not t.cancelled()]
        return [task.result() for task in tasks if task.exception() is None]

    def forget(self, key: K) -> None:
        """Have a result made anew when it is asked for again."""
        self._making.pop(key, None)

    def clear(self) -> None:
        """Forget all results."""
        self._making.clear()


class DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call: one that never returns delays no other call and no exit.

    As the default executor of an event loop it keeps `asyncio.to_thread` of an env that hangs from
    using up the threads of everybody else. How many calls run at a time is up to the callers.

    Example:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread of its own."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as e:  # carried to whoever waits for the future
                future.set_exception(e)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="katgym-call", daemon=True).start()
        return future


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call that blocks in a daemon thread of its own, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(DaemonThreads(), call)


class LoopThread:
    """An event loop in a daemon thread, for what lives on between calls from other loops.

    A synchronous `reset` and `step` of an env each run in a loop of their own: a connection or a
    program that an episode keeps needs one that stays. The thread starts with its first work.
    """

    def __init__(
        self,
        what: str,
        *,
        timeout_s: float | None = None,
        closed: Callable[[], Exception] | None = None,
    ) -> None:
        """Prepare a thread, which `stop` ends.

        what: who works there, for the text of errors, "the environment" say. timeout_s: wall
            seconds to wait for each coroutine; None waits for its end. closed: makes the error of
            work that the end came before; None is an `InfrastructureError`.
        """
        self._what, self._timeout_s = what, timeout_s
        self._closed = closed or (lambda: InfrastructureError(f"{what} has ended"))
        self._lock = threading.Lock()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine there; raises `closed` after the end."""
        with self._lock:
            if self._is_stopped:
                work.close()
                raise self._closed()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._live, args=(self._loop,), name="katgym-loop", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()  # a loop keeps no tasks alive: what works here lives by `self`

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and block until it is done; raises `closed` if the end comes
        first."""
        try:
            return self.submit(work).result()
        except CancelledError:
            raise self._closed() from None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it under the caller's loop; see `result`."""
        return await self.result(self.submit(work))

    async def result(self, work: Future[T]) -> T:
        """Return what was submitted; `InfrastructureError` if it is late, `closed` if the end comes
        first. What is late, or nobody waits for any more, is cancelled."""
        future = asyncio.wrap_future(work)
        try:
            done, _ = await asyncio.wait({future}, timeout=self._timeout_s)
        finally:
            future.cancel()
        if not done:
            text = f"{self._what} does not answer within {self._timeout_s:g} s"
            raise InfrastructureError(text)
        if future.cancelled():
            raise self._closed()
        return future.result()

    def stop(self) -> None:
        """Cancel what runs, wait for its end, and end the thread; may be called twice."""
        with self._lock:
            loop, self._loop, self._is_stopped = self._loop, None, True
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def close(self) -> None:
        """Do what `stop` does without waiting for it."""
        threading.Thread(target=self.stop, name="katgym-loop-end", daemon=True).start()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.sleep(0)  # transports that were closed just now give their sockets back
