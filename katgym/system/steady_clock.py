"""A wall clock that nobody sets: Unix time at its start, and the machine's uptime since.

Not here: timeouts of coroutines, which take the loop's own clock.
"""

from __future__ import annotations

import time
from pathlib import Path


class SteadyClock:
    """Tells Unix time that never goes back or jumps, whatever the system's clock is set to.

    Example:
        clock = SteadyClock()
        SteadyClock(clock.origin_s).now_s()  # the same clock, in another process of this boot
    """

    def __init__(self, origin_s: float | None = None) -> None:
        """Start it.

        origin_s: that of a clock of the same boot to go on with; None takes the time of now.
        """
        self.origin_s = time.time() - uptime_s() if origin_s is None else origin_s
        """Unix time at which the machine started."""

    def now_s(self) -> float:
        """Return Unix time."""
        return self.origin_s + uptime_s()


def uptime_s() -> float:
    """Return the seconds since the machine started, those asleep included where it tells them."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def boot_id() -> str:
    """Return a name of this run of the machine's kernel, the same in its containers; "" if none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
