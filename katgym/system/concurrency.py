"""Coroutines side by side with errors that stay what they are, results that several wait for, and
threads that nobody has to wait for.

Not here: running coroutines from synchronous code (`sync.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

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
