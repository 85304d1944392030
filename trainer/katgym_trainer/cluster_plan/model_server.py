"""A simulated model server: running requests share it, it freezes, sleeps and forgets.

With n sequences each gets a token every `round_s + n sequence_s` seconds; prompts are computed one
after the other, and tokens wait meanwhile, as in a server that mixes both into its rounds. New
weights and sleep make it forget keys and values: what runs is computed again from its first token.
What it has no room for is not evicted here: memory for keys and values is taken to be enough. Not
here: who is asked (`simulation.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from katgym_trainer.cluster_plan.events import Event, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRates:
    """A server's GPUs, and how fast they are together."""

    gpus: int
    is_shared: bool
    """Whether they are the trainer's, too."""
    round_s: float
    """Of a round of decoding, whatever runs: the weights are read once."""
    sequence_s: float
    """More for each sequence of a round."""
    prefill: float
    """Prompt tokens a second."""
    max_running: int
    """Requests at a time; others wait."""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedCall:
    """A request to a server."""

    num_context: float
    """Tokens before the next that is sampled."""
    num_cached: float
    """Of these, those whose keys and values the server has."""
    num_left: float
    """Tokens to sample."""
    done: Event = field(default_factory=Event)
    server: ModelServer | None = None
    """Who has it."""
    ends_at: float = 0.0
    """Progress of the server at which it is through, while it decodes."""

    def abort(self) -> None:
        """Give it up."""
        if self.server is not None:
            self.server.drop(self)
        self.done.set()


class ModelServer:
    """One server."""

    def __init__(self, clock: Timeline, rates: ServerRates, speed: float = 1.0) -> None:
        """speed: times as fast as the rates say."""
        self.rates, self._speed = rates, speed
        self.is_awake, self.num_forgotten = True, 0
        self._clock, self._is_frozen = clock, False
        self._waiting: deque[SimulatedCall] = deque()
        self._prompts: deque[SimulatedCall] = deque()
        self._decoding: dict[SimulatedCall, None] = {}
        self._ends: list[tuple[float, int, SimulatedCall]] = []
        """A heap of those that decode, or did."""
        self._progress = self._at = self._busy_s = self._sampled = 0.0
        self._num_plans = 0

    @property
    def num_calls(self) -> int:
        """Requests that it has, running or waiting."""
        return len(self._waiting) + len(self._prompts) + len(self._decoding)

    def observe(self) -> tuple[float, float]:
        """Return the seconds in which it computed, and the tokens that it sampled."""
        self._settle()
        return self._busy_s, self._sampled

    def submit(self, call: SimulatedCall) -> None:
        """Take a request."""
        self._settle()
        call.server = self
        self._waiting.append(call)
        self._plan()

    def drop(self, call: SimulatedCall) -> None:
        """Forget about a request."""
        self._settle()
        self._decoding.pop(call, None)
        for line in (self._waiting, self._prompts):
            if call in line:
                line.remove(call)
        self._plan()

    def freeze(self) -> None:
        """Stand still."""
        self._settle()
        self._is_frozen = True
        self._plan()

    def go_on(self) -> None:
        """Sample again, awake, without the keys and values that there were."""
        self._settle()
        self._is_frozen, self.is_awake = False, True
        self.num_forgotten += 1
        self._prompts.extend(self._stop_decoding())
        for call in self._prompts:
            call.num_cached = 0.0
        self._plan()

    def hand_over(self) -> list[SimulatedCall]:
        """Let go of all requests, as far as they are, and return them."""
        self._settle()
        found = [*self._stop_decoding(), *self._prompts, *self._waiting]
        self._prompts.clear()
        self._waiting.clear()
        self._plan()
        return found

    def _stop_decoding(self) -> list[SimulatedCall]:
        found = list(self._decoding)
        for call in found:
            left = call.ends_at - self._progress
            call.num_context, call.num_left = call.num_context + call.num_left - left, left
        self._decoding, self._ends = {}, []
        return found

    @property
    def _token_s(self) -> float:
        rates = self.rates
        return (rates.round_s + len(self._decoding) * rates.sequence_s) / self._speed

    def _settle(self) -> None:
        """Account for the time since it was last looked at."""
        passed, self._at = self._clock.now - self._at, self._clock.now
        if self._is_frozen or not (self._prompts or self._decoding):
            return
        self._busy_s += passed
        if self._prompts:
            self._prompts[0].num_cached += passed * self.rates.prefill * self._speed
        else:
            self._progress += passed / self._token_s
            self._sampled += passed / self._token_s * len(self._decoding)

    def _plan(self) -> None:
        """Admit what there is room for, and look again when something is next through."""
        self._num_plans += 1
        number = self._num_plans
        while self._waiting and len(self._prompts) + len(self._decoding) < self.rates.max_running:
            self._prompts.append(self._waiting.popleft())
        while self._ends and self._ends[0][2] not in self._decoding:
            heapq.heappop(self._ends)
        if self._is_frozen or not (self._prompts or self._decoding):
            return
        if self._prompts:
            left = self._prompts[0].num_context - self._prompts[0].num_cached
            delay_s = left / self.rates.prefill / self._speed
        else:
            delay_s = (self._ends[0][0] - self._progress) * self._token_s
        self._clock.call(max(0.0, delay_s), lambda: self._look(number))

    def _look(self, number: int) -> None:
        """Go on from what is through, unless something else has happened since it was planned."""
        if number != self._num_plans:
            return
        self._settle()
        through: list[SimulatedCall] = []
        if self._prompts:
            call = self._prompts.popleft()
            call.ends_at = self._progress + call.num_left
            self._decoding[call] = None
            heapq.heappush(self._ends, (call.ends_at, number, call))
        while self._ends and self._ends[0][0] <= self._progress + 1e-6:
            call = heapq.heappop(self._ends)[2]
            if self._decoding.pop(call, call) is None:
                through.append(call)
        self._plan()
        for call in through:
            call.done.set()
