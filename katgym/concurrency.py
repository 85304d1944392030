"""Several coroutines side by side, with errors that stay what they are.

Not here: running coroutines from synchronous code (`sync.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


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
