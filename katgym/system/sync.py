"""Runs a coroutine to its end from synchronous code, also under a running event loop.

Not here: the loop that plays episodes (`agent_loop.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def maybe_await(value: Any) -> Any:
    """Return a value, or the result of one that is awaited."""
    return await value if inspect.isawaitable(value) else value


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code.

    Under a running event loop (a notebook) it runs in a thread of its own, and the caller waits.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(asyncio.run(coroutine))
        except BaseException as e:  # whatever it is, the caller gets it
            result.set_exception(e)

    # No thread of a pool: the interpreter would wait at its end for one that hangs.
    threading.Thread(target=work, name="katgym-run-sync", daemon=True).start()
    return result.result()
