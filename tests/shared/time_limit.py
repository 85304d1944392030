"""Time limit of tests without a mark: one that takes more than five seconds is marked `slow`.

What a busy or slow machine decides is not counted: seconds are those of the processors (of this
process and of the processes it has waited for), divided by how slow the machine computes just
then, and waiting counts as far as the machine was idle meanwhile. So a test that sleeps beside
another busy process may pass; alone it will not. Not counted: fixtures, which may serve many tests,
processes that nobody has waited for when the test ends, and proofs while they are recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT_S = 5.0
YARDSTICK_S = 0.03
"""What the loop of `slowness` takes on the machine that the limit is meant for."""
EXEMPT = ("slow", "model", "vllm", "docker", "agents")


def slowness() -> float:
    """Measure how many times slower than that of the limit the machine is now; at least 1."""
    times = []
    for _ in range(3):
        began, total = time.process_time(), 0
        for number in range(300_000):
            total += number * number % 7
        times.append(time.process_time() - began)
    return max(1.0, sorted(times)[1] / YARDSTICK_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """What the clocks show at one moment, in seconds."""

    wall_s: float
    cpu_s: float
    """Of this process and of its children that have ended."""
    idle_s: float
    """Of the whole machine, for each processor; 0 where the system does not tell."""

    @classmethod
    def read(cls) -> Clocks:
        """Read all of them."""
        times, stat = os.times(), Path("/proc/stat")
        idle_ticks = int(stat.read_text().split()[4]) if stat.exists() else 0
        return cls(
            wall_s=time.monotonic(),
            cpu_s=times.user + times.system + times.children_user + times.children_system,
            idle_s=idle_ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1),
        )

    def counted_s(self, later: Clocks) -> float:
        """Return the time of a test that began here and ended at `later`; see the module."""
        wall_s, computed_s = later.wall_s - self.wall_s, later.cpu_s - self.cpu_s
        if min(wall_s, computed_s) > LIMIT_S:  # else it may stay as it is
            computed_s /= slowness()
        return min(wall_s, max(computed_s, later.idle_s - self.idle_s))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test without a mark that took too long."""
    began = Clocks.read()
    result = yield
    counted_s = began.counted_s(Clocks.read())
    is_exempt = any(map(item.get_closest_marker, EXEMPT)) or "KATGYM_RECORD_PROOFS" in os.environ
    if counted_s > LIMIT_S and not is_exempt:
        pytest.fail(
            f"took {counted_s:.1f} s, of which {LIMIT_S:.0f} are allowed: make it smaller, or mark "
            "it with @pytest.mark.slow",
            pytrace=False,
        )
    return result
