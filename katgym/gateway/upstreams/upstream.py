"""One model server and its circuit breaker.

Closed, it takes calls. Open, it takes none until a probe finds it well and a handshake finds it the
same as before. Half open, it takes one call at a time, until one of them or a second probe closes
it.

Not here: probes (`health_watch.py`); choosing (`pool.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_OPEN_S = 10.0
"""Longest time between two probes of a server that takes no calls."""
MAX_RETRY_AFTER_S = 60.0
_WEIGHT = 0.25
"""Of the newest call in the rate of failures."""
_MAX_FAILURE_RATE = 0.5
"""Three failures in a row are above it, and so is every second call over some time."""


class BreakerState(StrEnum):
    """Whether a server takes calls."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"
    REFUSED = "refused"
    """Open, as it is not the server that it ought to be."""


@dataclass(eq=False)
class Upstream:
    """One model server, as its gateway knows it; times are of `time.monotonic`."""

    url: str
    state: BreakerState = BreakerState.CLOSED
    num_in_flight: int = 0
    num_calls: int = 0
    num_failures: int = 0
    last_error: str = ""
    failure_rate: float = 0.0
    """Moving average over its calls, 0 to 1."""
    num_openings: int = 0
    """Times in a row that it was opened."""
    is_hung: bool = False
    """Whether it holds calls without answering any."""
    is_limited: bool = False
    """Whether it is open because it asked for a pause."""
    opened_s: float = 0.0
    open_until_s: float = 0.0
    """When it is to be probed next."""
    answered_s: float = field(default_factory=time.monotonic)
    """When it answered last, a call or a probe."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Model, tokenizer, chat template, weights: `checked`, `not checked`, or `reference`."""
    has_streams: bool = True
    """Whether it streams token ids; taken back once it refuses to."""
    is_probed: bool = False
    """Whether a probe is under way."""
    in_flight: set[asyncio.Timeout] = field(default_factory=set)
    """Time limits of the calls that are out: one that is made to expire is moved elsewhere."""

    @property
    def is_healthy(self) -> bool:
        """Whether it takes calls like any other."""
        return self.state is BreakerState.CLOSED

    @property
    def is_open(self) -> bool:
        """Whether it takes no calls."""
        return self.state in (BreakerState.OPEN, BreakerState.REFUSED)

    def describe(self) -> dict[str, Any]:
        """Return what the gateway's owner is told of it."""
        return {
            "url": self.url,
            "is_healthy": self.is_healthy,
            "state": str(self.state),
            "num_in_flight": self.num_in_flight,
            "num_calls": self.num_calls,
            "num_failures": self.num_failures,
            "last_error": self.last_error,
            "identity": dict(self.identity),
        }

    def note_success(self, *, sent_s: float) -> None:
        """Count an answer to a call that was sent at `sent_s`; an older one closes nothing."""
        self.answered_s = time.monotonic()
        self.failure_rate *= 1 - _WEIGHT
        if self.state is BreakerState.HALF_OPEN and sent_s >= self.opened_s:
            self.close()

    def note_failure(
        self, error: str, *, is_dead: bool = False, is_passing: bool = True, asked_s: float = 0.0
    ) -> None:
        """Count a call that failed, and open for a server that is dead, asks or fails often.

        is_passing: another call may do better. asked_s: seconds of the pause that it asked for.
        """
        self.num_failures += 1
        if not self.is_open:
            self.last_error = error
        if not is_passing:
            return
        self.failure_rate += _WEIGHT * (1 - self.failure_rate)
        if (
            is_dead
            or asked_s
            or self.state is BreakerState.HALF_OPEN
            or self.failure_rate > _MAX_FAILURE_RATE
        ):
            self.open(error, asked_s=asked_s)

    def open(self, error: str, *, asked_s: float = 0.0, is_hung: bool = False) -> None:
        """Take no calls; each time in a row the pause before the next probe is twice as long."""
        if self.is_open:
            return
        self.last_error = error
        now_s = time.monotonic()
        self.state = BreakerState.OPEN
        self.is_hung, self.is_limited = is_hung, asked_s > 0
        self.opened_s = now_s
        pause_s = min(2.0**self.num_openings, MAX_OPEN_S)
        self.num_openings += 1
        self.open_until_s = now_s + (min(asked_s, MAX_RETRY_AFTER_S) if asked_s else pause_s)

    def postpone(self, error: str) -> None:
        """Stay open behind a probe that failed."""
        self.last_error = error
        pause_s = min(2.0**self.num_openings, MAX_OPEN_S)
        self.num_openings += 1
        self.open_until_s = time.monotonic() + pause_s

    def refuse(self, error: str) -> None:
        """Take no calls until another handshake."""
        self.state = BreakerState.REFUSED
        self.is_limited = False
        self.last_error = error
        self.open_until_s = time.monotonic() + MAX_OPEN_S

    def close_half(self) -> None:
        """Take one call at a time."""
        self.state = BreakerState.HALF_OPEN
        self.is_hung = False
        self.answered_s = time.monotonic()

    def close(self) -> None:
        """Take calls again."""
        self.state = BreakerState.CLOSED
        self.is_hung = self.is_limited = False
        self.num_openings, self.failure_rate = 0, 0.0
