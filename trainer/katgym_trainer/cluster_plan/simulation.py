"""A run's loop in simulated time: groups played ahead, steps, new weights for servers.

The rules are the run's own: which groups begin, and which a step waits for or drops
(`rl/group_stream.py`), who is asked (`rl/servers/load_balancing.py`), who sleeps until when
(`rl/servers/server_pool.py`), what happens in turn (`rl/rl_run.py`). Not simulated: evaluations,
checkpoints, groups that are refused or played again, deaths, sandboxes. Not here: servers
(`model_server.py`), what a reader gets (`prediction.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from katgym_trainer.cluster_plan.events import Event, Line, Places, Process, Timeline
from katgym_trainer.cluster_plan.model_server import ModelServer, SimulatedCall
from katgym_trainer.cluster_plan.scenario import Scenario
from katgym_trainer.config.rl_config import StaleGroups
from katgym_trainer.rl.group_stream import must_wait


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedGroup:
    """A group that is played."""

    number: int
    begun_version: int
    num_left: int
    """Rollouts that play."""
    num_tokens: float = 0.0
    """Of all rollouts, prompts and what was read included."""
    turns: list[tuple[int, float]] = field(default_factory=list)
    """Version, and tokens that it sampled."""
    calls: dict[SimulatedCall, None] = field(default_factory=dict)
    """Those that run."""
    is_dropped: bool = False


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the steps that count."""

    num_steps: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0
    store_s: float = 0.0
    prepare_s: float = 0.0
    """Rows and packing."""
    train_s: float = 0.0
    """Forward, backward, optimizer."""
    sync_s: float = 0.0
    sampler_s: float = 0.0
    """GPU seconds in which servers computed."""
    sampled: float = 0.0
    loop_s: float = 0.0
    gateway_s: float = 0.0
    num_dropped: float = 0.0
    """Groups."""
    trained: float = 0.0
    """Sampled tokens that were trained on."""
    too_old: float = 0.0
    """Sampled tokens that were not."""
    ages: float = 0.0
    """Steps, summed over tokens."""


class Simulation:
    """One run, from its first group on."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.assumed = scenario, scenario.assumed
        self.clock, self.totals = Timeline(), Totals()
        speed = self.assumed.sampler_speed
        self.servers = [ModelServer(self.clock, rates, speed) for rates in scenario.servers]
        self._shared = [server for server in self.servers if server.rates.is_shared]
        self._apart = [server for server in self.servers if not server.rates.is_shared]
        self._loops = Line(self.clock, max(1, self.assumed.loops))
        self._gateways = Line(self.clock, self.assumed.gateways)
        self._version = self._served_version = self._sampled_version = self._num_drawn = 0
        self._next_step, self._is_over = 1, False
        self._delivered = Event()
        """The newest weights are there."""
        self._delivered.set()
        self._running: dict[SimulatedGroup, None] = {}
        self._finished: list[SimulatedGroup] = []
        self._places = Places(scenario.rollouts.max_concurrency)
        self._changed, self._opened = Event(), Event()
        self._homeless: list[SimulatedCall] = []
        """Handed over while nobody takes requests."""

    def run(self) -> Totals:
        """Simulate all steps."""
        self.clock.begin(self._train())
        self.clock.run(lambda: self._is_over)
        return self.totals

    # The loop of a run, and its stream of groups.

    def _train(self) -> Process:
        scenario, assumed, clock = self.scenario, self.assumed, self.clock
        num_groups, num_warm = scenario.rollouts.num_groups, assumed.steps // 3
        before, totals = Totals(), Totals()
        for step in range(assumed.steps):
            if step == num_warm:
                before, totals = self._observe(Totals()), Totals()
            # 1. Groups, by weights at most max_staleness steps old; they are written down.
            began, self._next_step = clock.now, self._version + 1
            while not self._is_ready():
                self._fill()
                yield self._changed
            order = sorted(self._finished, key=lambda g: (g.begun_version, g.number))
            taken, self._finished = order[:num_groups], order[num_groups:]
            self._next_step += 1
            self._fill()
            totals.wait_s += clock.now - began
            num_turns, flat = self._count(taken, totals)
            totals.store_s += num_turns * assumed.store_turn_s
            yield num_turns * assumed.store_turn_s

            # 2. The step; servers that share its devices sleep.
            if any(server.is_awake for server in self._shared):
                self._send_to_sleep()
                yield assumed.sleep_s
            ranks = scenario.train_gpus * scenario.num_parts
            prepare_s = flat * (assumed.rows_token_s + assumed.pack_token_s / ranks)
            packed = flat * (1 - assumed.shared_prefix) / scenario.num_parts
            train_s = (packed / scenario.train_rate + assumed.step_s) / assumed.trainer_speed
            totals.prepare_s += prepare_s
            totals.train_s += train_s
            yield prepare_s + train_s

            # 3. New weights: written while servers sample, read while they stand. The trainer waits
            # until they are there where servers need its devices or its model.
            began = clock.now
            yield self._delivered
            self._version, self._next_step = self._version + 1, self._version + 2
            self._delivered = Event()
            wakes = self._shared and not (self._apart and self._is_ready())
            yield scenario.sync_bytes / assumed.write_rate
            clock.begin(self._deliver(self.servers if wakes else self._apart))
            if wakes or not scenario.is_overlapped:
                yield self._delivered
            totals.sync_s += clock.now - began
            totals.num_dropped += self._give_up()
            self._fill()
            totals.num_steps += 1
        now, self.totals, self._is_over = self._observe(Totals()), totals, True
        for name in ("wall_s", "sampler_s", "sampled", "loop_s", "gateway_s"):
            setattr(totals, name, getattr(now, name) - getattr(before, name))

    def _observe(self, totals: Totals) -> Totals:
        """Put in what has been going on since the run began."""
        totals.wall_s = self.clock.now
        totals.loop_s, totals.gateway_s = self._loops.busy_s, self._gateways.busy_s
        for server in self.servers:
            busy_s, sampled = server.observe()
            totals.sampler_s += busy_s * server.rates.gpus
            totals.sampled += sampled
        return totals

    def _deliver(self, servers: Sequence[ModelServer]) -> Process:
        """Give servers the weights that are written, and wake those that sleep."""
        for server in servers:
            server.freeze()
        yield self.scenario.sync_bytes / self.assumed.read_rate
        self._served_version += 1
        for server in servers:
            server.go_on()
        self._open()
        yield self.assumed.probe_s
        self._sampled_version = self._served_version
        self._fill()
        self._delivered.set()

    def _is_ready(self) -> bool:
        """Return whether the next step's groups are there."""
        return len(self._finished) >= self.scenario.rollouts.num_groups and not self._has_to_wait()

    def _has_to_wait(self) -> bool:
        """Return whether a group still plays that some later step would find too old."""
        if self.scenario.rollouts.stale is not StaleGroups.WAIT:
            return False
        sizes = self.scenario.rollouts
        return must_wait(
            [group.begun_version for group in self._running],
            sorted(group.begun_version for group in self._finished),
            oldest=self._version - sizes.max_staleness,
            newest=self._version,
            num_groups=sizes.num_groups,
        )

    def _fill(self) -> None:
        """Begin groups while the bound allows it."""
        sizes = self.scenario.rollouts
        steps = sizes.max_staleness + 2 + self._sampled_version - self._next_step
        while len(self._running) + len(self._finished) < steps * sizes.num_groups:
            group = SimulatedGroup(
                number=self._num_drawn,
                begun_version=self._sampled_version,
                num_left=sizes.group_size,
            )
            self._num_drawn += 1
            self._running[group] = None
            for attempt in range(sizes.group_size):
                self.clock.begin(self._play(group, attempt))

    def _give_up(self) -> int:
        """Return how many groups are given up as too old."""
        if self.scenario.rollouts.stale is not StaleGroups.DROP:
            return 0
        oldest, dropped = self._version - self.scenario.rollouts.max_staleness, 0
        for group in [group for group in self._running if group.begun_version < oldest]:
            group.is_dropped = True
            del self._running[group]
            dropped += 1
            for call in list(group.calls):
                call.abort()
        fresh = [group for group in self._finished if min(group.turns)[0] >= oldest]
        dropped += len(self._finished) - len(fresh)
        self._finished = fresh
        return dropped

    def _count(self, taken: list[SimulatedGroup], totals: Totals) -> tuple[int, float]:
        """Return the turns and tokens of a step's groups in all parts, and note their ages."""
        for version, tokens in (turn for group in taken for turn in group.turns):
            age = self._version - version
            if age > self.scenario.rollouts.max_staleness:  # only where old groups play on
                totals.too_old += tokens
            else:
                totals.trained += tokens
                totals.ages += tokens * age
        parts = self.scenario.num_parts
        flat = sum(group.num_tokens for group in taken)
        return parts * sum(len(group.turns) for group in taken), parts * flat

    # Servers, and who is asked.

    def _send_to_sleep(self) -> None:
        for server in self._shared:
            server.is_awake = False
            if self.assumed.hand_over and len(self._shared) < len(self.servers):
                self._homeless += server.hand_over()
            server.freeze()
        self._open()

    def _open(self) -> None:
        """Let those go on who wait for a server that takes requests."""
        if any(server.is_awake for server in self.servers):
            homeless, self._homeless = self._homeless, []
            for call in homeless:
                if not call.done.is_set:
                    call.num_cached = 0.0
                    self._choose(None).submit(call)
            event, self._opened = self._opened, Event()
            event.set()

    def _choose(self, home: ModelServer | None) -> ModelServer:
        """Return who is asked, of those that take requests."""
        awake = [server for server in self.servers if server.is_awake]
        awake = [s for s in awake if s.num_calls < s.rates.max_running] or awake
        return home if home in awake else min(awake, key=lambda server: server.num_calls)

    # A rollout.

    def _play(self, group: SimulatedGroup, attempt: int) -> Process:
        assumed, limits, parts = self.assumed, self.scenario.policy, self.scenario.num_parts
        luck = random.Random(assumed.seed + 7919 * (group.number * 4096 + attempt))

        def draw(mean: float, sigma: float) -> float:
            return mean * math.exp(luck.gauss(0, sigma) - sigma**2 / 2)

        yield self._places.enter()
        turns = max(1, round(draw(assumed.turns, assumed.turns_sigma)))
        most = self.scenario.rollouts.max_turns or turns
        context, cached = float(assumed.prompt_tokens), 0.0
        home, num_forgotten = None, 0
        for _ in range(min(turns, most)):
            answer = min(draw(assumed.answer_tokens, assumed.answer_sigma), limits.max_tokens)
            answer = min(max(1.0, answer), limits.max_context_tokens - context)
            if answer < 1 or group.is_dropped:
                break
            # 1. The model call; its server may still have the prefix.
            yield self._loops.call(assumed.loop_turn_s * parts)
            if self.scenario.rollouts.store:
                more = max(0.0, context - 576) * assumed.gateway_token_s
                yield self._gateways.call((assumed.gateway_call_s + more) * parts)
            while not any(server.is_awake for server in self.servers):
                yield self._opened
            server = self._choose(home)
            if server is not home or server.num_forgotten != num_forgotten:
                cached = 0.0
            group.turns.append((self._served_version, answer))
            call = SimulatedCall(num_context=context, num_cached=cached, num_left=answer)
            group.calls[call] = None
            server.submit(call)
            yield call.done
            del group.calls[call]
            home = call.server or server  # it may have been handed over
            num_forgotten, cached = home.num_forgotten, context + answer

            # 2. The env's reply.
            yield draw(assumed.env_s, assumed.env_sigma)
            context += answer + assumed.observation_tokens
        if not group.is_dropped:
            yield draw(assumed.grade_s, assumed.env_sigma)
        self._places.leave()
        group.num_tokens += min(context, limits.max_context_tokens)
        group.num_left -= 1
        if group.num_left == 0 and not group.is_dropped:
            del self._running[group]
            self._finished.append(group)
            event, self._changed = self._changed, Event()
            event.set()
