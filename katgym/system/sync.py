"""Runs a coroutine to its end from synchronous code, also under a running event loop.

Not here: the loop that plays episodes (`agent_loop.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code.

    Under a running event loop (a notebook) it runs in a thread of its own, and the caller waits.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, thread_name_prefix="katgym-run-sync") as pool:
        return pool.submit(asyncio.run, coroutine).result()
