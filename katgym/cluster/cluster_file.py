"""The file in a run's folder that says who is where on its cluster, and how they are doing.

    async with keep_file(folder / "cluster.json", tell, address=address, hosts=hosts):
        ...  # play, or train

`katgym cluster status` shows it. Not here: who is there, which its caller tells; Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.errors import InfrastructureError
from katgym.system import write_atomically
from katgym.system.concurrency import wait_out

logger = logging.getLogger(__name__)

_EVERY_S = 2.0


@contextlib.asynccontextmanager
async def keep_file(
    path: Path,
    tell: Callable[[bool], Mapping[str, Any] | None],
    *,
    address: str,
    hosts: Sequence[str],
) -> AsyncIterator[None]:
    """Write a file at once and every two seconds, and when this closes, for whatever reason.

    tell: called in a thread with whether it is over, returns who is there: lists `workers` and
        `servers`, or `ranks`. None: there is no run yet, and nothing is written.

    A file that cannot be written is a warning.

    Example:
        {"address": "auto", "hosts": ["10.0.0.7"], "written_s": 1764334355.2, "is_over": false,
         "workers": [{"name": "rollout worker 0 (process 29497 on node dee935e1)", ...}]}
    """

    def write(is_over: bool) -> None:
        found = tell(is_over)
        if found is None:
            return
        common = {"address": address, "hosts": hosts, "written_s": time.time(), "is_over": is_over}
        try:
            write_atomically(path, json.dumps({**common, **found}, indent=2).encode())
        except InfrastructureError as e:
            logger.warning("%s is not written: %s", path, e)

    closing = asyncio.Event()

    async def keep() -> None:
        """Write one after the other, so that none takes the place of the last one."""
        while not closing.is_set():
            await asyncio.to_thread(write, False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await closing.wait()
        await asyncio.to_thread(write, True)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        closing.set()
        await wait_out(keeping)
