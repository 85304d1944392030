"""The event loop of a supervisor; runs inside sandboxes, Python >= 3.8.

Not here: what is waited for (`program.py`, `running.py`).
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """Calls back whenever a descriptor is ready."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def watch(self, fd: int, callback: Callable[[], object], *, is_output: bool = False) -> None:
        """Call back whenever a descriptor is ready."""
        self._callbacks[fd] = callback
        self._poll.register(fd, select.EPOLLOUT if is_output else select.EPOLLIN)

    def change(self, fd: int, callback: Callable[[], object], *, is_output: bool) -> None:
        """Call back otherwise from here on, with `is_output` for output as well as for input."""
        self._callbacks[fd] = callback
        self._poll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if is_output else 0))

    def is_watched(self, fd: int) -> bool:
        """Return whether a descriptor is in the loop."""
        return fd in self._callbacks

    def mute(self, fd: int) -> None:
        """Take a descriptor out of the loop, open as it is."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def unwatch(self, fd: int) -> None:
        """Take a descriptor out of the loop and close it."""
        self.mute(fd)
        os.close(fd)

    def wait(self, timeout_s: float) -> None:
        """Wait until something is ready, at most so long (-1: for ever), and call back."""
        for fd, _ in self._poll.poll(timeout_s):
            callback = self._callbacks.get(fd)  # an earlier one may have ended it
            if callback is not None:
                callback()
