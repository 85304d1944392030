"""One completion in the making: what was asked, and what was sampled by which weights.

Not here: when it runs (`hf_engine.py`), and beside whom (`row_batch.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from katgym.policies.base import Sampling
from katgym.policies.token_policy import Generated
from katgym.policies.version_span import VersionSpan


@dataclass(eq=False, kw_only=True)
class Request:
    """`ids` is the prompt followed by what was sampled."""

    ids: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling
    uniforms: Iterator[float]
    """Its own random numbers in [0, 1)."""
    session_id: str
    num_prompt: int = 0
    slot: int = -1
    """Where its keys and values are; -1: nowhere."""
    num_cached: int = 0
    """Tokens whose keys and values are in the slot."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Weights that sampled, each with the number of tokens sampled before it, in order."""
    begun: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)
    """Done when it is no longer queued."""
    future: concurrent.futures.Future[Generated] = field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.ids)

    @property
    def max_length(self) -> int:
        """Tokens it may have in the end."""
        return self.num_prompt + self.max_tokens

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length`, or None while there is more to sample."""
        if not self.logprobs:
            return None
        if self.ids[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.logprobs) >= self.max_tokens else None

    def begin(self, version: int) -> None:
        """Note that the tokens from here on are sampled by weights `version`."""
        self.leave_queue()
        if self.versions and self.versions[-1][0] == version:
            return
        if self.versions and self.versions[-1][1] == len(self.logprobs):
            self.versions.pop()  # those weights sampled nothing
        self.versions.append((version, len(self.logprobs)))

    def leave_queue(self) -> None:
        """Wake who waits for that; may be called twice, from any thread."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.begun.set_result(None)

    def pause(self) -> None:
        """Give the slot up; all of `ids` is computed again when it goes on."""
        self.slot, self.num_cached = -1, 0

    def to_generated(self) -> Generated:
        """Return the answer, with a span for each of the weights that sampled it."""
        ends = [*(start for _, start in self.versions[1:]), len(self.logprobs)]
        return Generated(
            token_ids=self.ids[self.num_prompt :],
            policy_logprobs=self.logprobs,
            finish_reason=self.finish_reason or "length",
            version_spans=tuple(
                VersionSpan(version=version, start=start, end=end)
                for (version, start), end in zip(self.versions, ends, strict=True)
            ),
        )
