"""Holds Ctrl-C back while something must not stop half way.

Not here: other signals; a kill leaves checkpoints whole (`checkpoints.py`).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def hold_interrupts() -> Iterator[None]:
    """Deliver SIGINT, to whoever handles it, only at the end of the block.

    Outside the main thread, where no signal is handled, it does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
