"""Servers by their load, kept up as it changes: choosing costs the same for any number of them.

Not here: which servers are in it, and sessions' own servers (`pool.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

ServerT = TypeVar("ServerT")


class LeastLoaded(Generic[ServerT]):
    """Buckets of servers with equally many calls in flight; the longest idle one of each is first.

    Example:
        servers = LeastLoaded()
        servers.put("a", 2)
        servers.put("b", 1)
        servers.first()  # "b"
    """

    def __init__(self) -> None:
        self._loads: dict[ServerT, int] = {}
        self._buckets: dict[int, dict[ServerT, None]] = {}
        self._least = 0
        """No bucket below this one has a server."""

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, server: object) -> bool:
        return server in self._loads

    def put(self, server: ServerT, load: int) -> None:
        """Add a server, or move it to another load."""
        self.discard(server)
        self._loads[server] = load
        self._buckets.setdefault(load, {})[server] = None
        self._least = min(self._least, load)

    def discard(self, server: ServerT) -> None:
        """Take a server out, if it is in."""
        load = self._loads.pop(server, None)
        if load is not None:
            del self._buckets[load][server]

    def first(self, excluded: Collection[ServerT] = ()) -> ServerT | None:
        """Return the least busy server that is not excluded; None if there is none."""
        load, num_left = self._least, len(self._loads)
        while num_left:
            bucket = self._buckets.get(load)
            if bucket:
                for server in bucket:
                    if server not in excluded:
                        return server
                num_left -= len(bucket)
            elif load == self._least:
                self._least += 1
            load += 1
        return None
