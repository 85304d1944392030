"""One policy over several servers: each request goes to one that is up and awake.

Calls of an episode stay on the server that has computed its prefix, as long as that one takes
requests and has room; others go to the one with the fewest running. So what is more than servers
have room for goes to those on the trainer's devices while these are awake. Where none takes
requests they wait. What a server gives up, as it goes to sleep, goes on elsewhere after the tokens
that it had sampled.

Not here: which servers are up and awake (`run_servers.py`, `server_pool.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from katgym.policies.endpoints.vllm_client import AbortedError
from katgym.policies.partial_completion import PartialCompletion
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.waiting import excuse_since, waiting
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
    def max_running(self) -> int:
        """Requests that it has room for; more wait."""

    @property
    def error(self) -> Exception | None:
        """Why it will never be up again; None while that is not so."""


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
        self,
        prompt_ids: Sequence[int],
        *,
        session_id: str,
        max_tokens: int,
        seed: int | None,
        **asked: Any,
    ) -> Generated:
        gave_up: int | None = None
        partial = PartialCompletion()
        while True:
            opened = [number for number, seat in enumerate(self._seats) if seat.is_open]
            if not opened:
                for seat in self._seats:
                    if seat.error is not None:
                        raise seat.error
                with waiting():
                    await self._changed.wait()
                continue
            home = self._homes.get(session_id)
            opened = [number for number in opened if number != gave_up] or opened
            free = [n for n in opened if self._num_running[n] < self._seats[n].max_running]
            opened = free or opened
            number = home if home in opened else min(opened, key=self._num_running.__getitem__)
            self._homes[session_id] = number
            self._num_running[number] += 1
            began_s = asyncio.get_running_loop().time()
            try:
                prompt, left, own_seed = partial.rest(prompt_ids, max_tokens, seed)
                rest = await self._seats[number].policy.generate(
                    prompt, session_id=session_id, max_tokens=left, seed=own_seed, **asked
                )
                if not partial.token_ids:
                    return rest
                partial.add(rest)
                return Generated(  # its experts are not told: no server told all of them
                    token_ids=partial.token_ids,
                    policy_logprobs=partial.policy_logprobs,
                    finish_reason=rest.finish_reason,
                    version_spans=partial.version_spans,
                )
            except LostError:
                excuse_since(began_s)
                continue  # sampled anew, by a server that is up
            except AbortedError as e:
                gave_up = number  # it may sleep without being known to
                partial.add(e.generated)
            finally:
                self._num_running[number] -= 1

    def release(self, session_id: str) -> None:
        self._homes.pop(session_id, None)

    async def aclose(self) -> None:
        """Close nothing: the connections are their servers'."""

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "servers": [seat.policy.describe() for seat in self._seats]}
