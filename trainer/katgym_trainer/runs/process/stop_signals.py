"""Ctrl-C and SIGTERM end a run between two steps instead of within one.

A second one ends it at once. Only the main thread can listen: elsewhere signals do what they did.
Not here: what is saved then (`train_run.py`).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Context manager that remembers the first signal.

    Example:
        with StopSignals() as stop:
            while stop.received is None:
                step()
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """What shells expect of a process that a signal ended: 128 and its number."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
