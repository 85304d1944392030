"""One policy over several servers: each request goes to one that is up and awake.

Calls of an episode stay on the server that has computed its prefix, as long as that one takes
requests; others go to the one with the fewest running. Where none takes requests they wait. What a
server gives up, as it goes to sleep, goes on elsewhere after the tokens that it had sampled.

Not here: which servers are up and awake (`run_servers.py`, `server_pool.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from katgym.policies.endpoints.vllm_client import AbortedError
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.version_span import VersionSpan
from katgym_trainer.rl.servers.failover import LostError


class Signal:
    """Wakes everybody who waits for it, each time that it is given."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def give(self) -> None:
        """Wake those who wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return when it is given next."""
        await self._event.wait()


class Seat(Protocol):
    """A server, as far as requests are concerned."""

    @property
    def policy(self) -> TokenPolicy:
        """What asks it."""

    @property
    def is_open(self) -> bool:
        """Whether it takes requests: it is up and awake."""

    @property
    def error(self) -> Exception | None:
        """Why it will never be up again; None while that is not so."""


def join(parts: Sequence[Generated]) -> Generated:
    """Return a completion that servers sampled one after the other; its experts are not told."""
    spans: list[VersionSpan] = []
    num_tokens = 0
    for part in parts:
        for span in part.version_spans:
            shifted = dataclasses.replace(
                span, start=span.start + num_tokens, end=span.end + num_tokens
            )
            spans.append(shifted)
        num_tokens += len(part.token_ids)
    return Generated(
        token_ids=[token for part in parts for token in part.token_ids],
        policy_logprobs=[value for part in parts for value in part.policy_logprobs],
        finish_reason=parts[-1].finish_reason,
        version_spans=spans if all(part.version_spans for part in parts) else (),
    )


class BalancedPolicy(TokenPolicy):
    """Plays through some servers, which all have the same model."""

    def __init__(self, name: str, seats: Sequence[Seat], changed: Signal) -> None:
        """changed: given whenever a seat opens or has an error."""
        first = seats[0].policy
        self.name = name
        self.renderer, self.tokenizer = first.renderer, first.tokenizer
        self.max_context_tokens = min(seat.policy.max_context_tokens for seat in seats)
        self.vocab_size = min(seat.policy.vocab_size for seat in seats)
        self._seats, self._changed = list(seats), changed
        self._num_running = [0] * len(seats)
        self._homes: dict[str, int] = {}
        """Number of the seat that has a session's prefix."""

    async def generate(
        self, prompt_ids: Sequence[int], *, session_id: str, max_tokens: int, **asked: Any
    ) -> Generated:
        gave_up: int | None = None
        parts: list[Generated] = []
        sampled: list[int] = []
        while True:
            opened = [number for number, seat in enumerate(self._seats) if seat.is_open]
            if not opened:
                for seat in self._seats:
                    if seat.error is not None:
                        raise seat.error
                await self._changed.wait()
                continue
            home = self._homes.get(session_id)
            opened = [number for number in opened if number != gave_up] or opened
            number = home if home in opened else min(opened, key=self._num_running.__getitem__)
            self._homes[session_id] = number
            self._num_running[number] += 1
            try:
                rest = await self._seats[number].policy.generate(
                    [*prompt_ids, *sampled] if sampled else prompt_ids,
                    session_id=session_id,
                    max_tokens=max_tokens - len(sampled),
                    **asked,
                )
                return join([*parts, rest]) if parts else rest
            except LostError:
                continue  # sampled anew, by a server that is up
            except AbortedError as e:
                gave_up = number  # it may sleep without being known to
                if e.generated.token_ids:
                    parts.append(e.generated)
                    sampled += e.generated.token_ids
            finally:
                self._num_running[number] -= 1

    def release(self, session_id: str) -> None:
        self._homes.pop(session_id, None)

    async def aclose(self) -> None:
        """Close nothing: the connections are their servers'."""

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "servers": [seat.policy.describe() for seat in self._seats]}
