"""Versions of the weights, and when they moved: which of them sampled a call's tokens.

For servers that do not tell. Not here: pauses of calls (`admission.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from katgym.policies.version_span import VersionSpan

_MAX_MOVES = 1024
"""Moves that are remembered; a call that lives through more counts as begun at the first."""


@dataclass(frozen=True, slots=True)
class _Move:
    paused_s: float
    resumed_s: float
    before: int
    """Version up to then."""


@dataclass
class VersionLog:
    """The version, and its latest moves.

    now_s: tells the time in which calls are sent and answered.
    """

    version: int = 0
    now_s: Callable[[], float] = time.time
    _paused_s: float | None = None
    _moves: deque[_Move] = field(default_factory=lambda: deque(maxlen=_MAX_MOVES))

    def pause(self) -> None:
        """Note that servers stop to sample."""
        if self._paused_s is None:
            self._paused_s = self.now_s()

    def resume(self, version: int) -> None:
        """Note that they go on, with weights of this version."""
        if version != self.version:
            now_s = self.now_s()
            paused_s = now_s if self._paused_s is None else self._paused_s
            self._moves.append(_Move(paused_s, now_s, self.version))
            self.version = version
        self._paused_s = None

    def spans(self, sent_s: float, answered_s: float, num_tokens: int) -> tuple[VersionSpan, ...]:
        """Return the spans of a call's tokens, taking each token to have cost the same time.

        Every version that the call lived through has a token at least, the oldest ones first where
        there are too few: the call counts as as old as its oldest weights.
        """
        segments: list[tuple[int, float]] = []  # version, seconds of sampling
        begin_s = sent_s
        for move in self._moves:
            if not sent_s < move.resumed_s <= answered_s:
                continue
            segments.append((move.before, max(move.paused_s - begin_s, 0.0)))
            begin_s = move.resumed_s
        current = next((m.before for m in self._moves if m.resumed_s > answered_s), self.version)
        segments.append((current, max(answered_s - begin_s, 0.0)))
        total_s = sum(seconds for _, seconds in segments) or 1.0
        spans, start, passed_s = [], 0, 0.0
        for place, (version, seconds) in enumerate(segments):
            passed_s += seconds
            num_left = len(segments) - place - 1
            end = round(num_tokens * passed_s / total_s) if num_left else num_tokens
            end = min(max(end, start + 1), max(num_tokens - num_left, start + 1), num_tokens)
            if end > start or not num_tokens:
                spans.append(VersionSpan(version=version, start=start, end=end))
            start = end
            if start == num_tokens:
                break
        return tuple(spans)
