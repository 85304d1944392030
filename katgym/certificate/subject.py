"""The env under test: fresh instances, its levels, and one player for all policies.

Not here: the policies (`cheap_policies.py`), what is concluded (`checks/`).
"""

from __future__ import annotations

import contextlib
import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from katgym.certificate.findings import Failed, Floor, Skipped
from katgym.environment.env import Env, Observation
from katgym.environment.failure import FailureKind
from katgym.environment.messages import Action, Message
from katgym.environment.reward import Reward

MAX_STEPS = 1000
"""Steps after which a check gives up on an episode that neither ends nor truncates."""
MAX_CHEAP_STEPS = 40
"""Turns that a player without skill gets, whatever the env allows."""
HANG_S = 30.0
"""Seconds after which a call of the env hangs, where nothing speaks for a longer one."""
PATIENCE = 4
"""Times the longest call before that each of the calls that run may take."""
EPSILON = 1e-9
_WATCHED = ("tasks", "areset", "astep", "aclose", "atruncate", "oracle_action", "random_action")
"""Methods of an env in which it may hang."""

Act = Callable[[Env, Observation], Any]
"""Next action, or an awaitable of it, from the env and what was last observed."""


@dataclass(slots=True, kw_only=True)
class Subject:
    """The env under test, how much to try, and what the checks before found."""

    name: str
    env: Env
    """Never played: clones of it are."""
    registered_id: str | None
    num_tasks: int
    budget_s: float
    """For each of the checks that play many episodes."""
    hang_s: float = HANG_S
    floors: list[Floor] = field(default_factory=list)
    study: object = None
    """Its `Study` as it is made, once a check has needed it."""
    hangs: str = ""
    """What the grader did not return from, once a check has found that out."""

    _running: dict[object, tuple[float, str]] = field(default_factory=dict)
    """Calls of the env that have not returned: when each began, and its name."""
    _longest_s: float = 0.0
    """What the longest call took that has returned."""

    def fresh(self) -> Env:
        """Make another instance, as the env under test is."""
        return self._watch(self._timed("clone", self.env.clone)())

    def _watch(self, env: Env) -> Env:
        for name in _WATCHED:
            setattr(env, name, self._timed(name, getattr(env, name)))
        return env

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is in `_running` until it has returned or raised."""

        @contextlib.contextmanager
        def noted() -> Iterator[None]:
            key = object()
            self._running[key] = (time.monotonic(), name)
            try:
                yield
            finally:
                began_s, _ = self._running.pop(key)
                self._longest_s = max(self._longest_s, time.monotonic() - began_s)

        async def wait(*args: Any, **kwargs: Any) -> Any:
            with noted():
                return await call(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            with noted():
                return call(*args, **kwargs)

        return wait if inspect.iscoroutinefunction(call) else run

    def hanging_call(self) -> tuple[str, float]:
        """Return name and age in seconds of a call that hangs, `("", 0.0)` for none.

        A call may take `hang_s`, twice the budget, and `PATIENCE` times the longest call before
        for each call that runs beside it: they may wait for one lock. The env's own limits add to
        that. What an episode takes as a whole does not count.
        """
        now_s = time.monotonic()
        running = list(self._running.copy().values())
        limit_s = max(self.hang_s, 2 * self.budget_s, PATIENCE * self._longest_s * len(running))
        for began_s, name in sorted(running):
            if now_s - began_s > limit_s + self._own_limit_s(name):
                return name, now_s - began_s
        return "", 0.0

    def _own_limit_s(self, name: str) -> float:
        """Return what the env's limits allow a call: a step its slowest tool, an oracle a turn.

        An oracle may try a whole solution out before its first action.
        """
        limits = self.env.scheduler
        if name == "oracle_action":
            return limits.turn_timeout_s
        tools = self.env.tools.values() if name == "astep" else ()
        return max((tool.timeout_s or limits.tool_timeout_s for tool in tools), default=0.0)

    def budget(self, share: float = 1.0) -> Callable[[], bool]:
        """Start a budget, or a share of one; what is returned tells whether it is spent."""
        end = time.monotonic() + share * self.budget_s
        return lambda: time.monotonic() > end

    def make_level(self, name: str) -> Env:
        """Make the env as it is on one of its levels."""
        args, kwargs = self.env._init_arguments
        make = self._timed("make", type(self.env))
        return self._watch(make(*args, **{**kwargs, **self.env.levels[name]}))

    def levels(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the levels beyond the default; none if an argument that makes them was given."""
        given = self.env._init_arguments[1]
        levels = type(self.env).levels
        is_chosen = any(key in given for level in levels.values() for key in level)
        return {} if is_chosen else levels


def max_value(env: Env) -> float:
    """Return what the rubric adds up to when every scorer says 1; 1.0 without a rubric."""
    weights = [s.weight for s in env.rubric.scorers if not s.is_gate and s.weight > 0]
    return sum(weights) if weights else 1.0


async def play(
    env: Env, act: Act, *, seed: int, options: Mapping[str, Any] | None = None
) -> tuple[float, list[Message]]:
    """Play an episode to its end; return its reward, which has to be valid, and all messages."""
    observation, _ = await env.areset(seed=seed, options=dict(options or {}))
    for _ in range(MAX_STEPS):
        action = act(env, observation)
        observation, _, terminated, truncated, _ = await env.astep(
            await action if inspect.isawaitable(action) else action
        )
        if terminated or truncated:
            break
    else:
        await env.aclose()
        raise Failed(f"seed {seed}: the episode has not ended after {MAX_STEPS} steps")
    reward: Reward | None = env.last_reward
    if reward is None or reward.value is None:
        reason = reward.reason if reward is not None else "none was given"
        raise Failed(f"seed {seed}, task {env.task.task_id!r}: no valid reward: {reason}")
    return reward.value, list(env.messages)


async def play_cheaply(env: Env, act: Act, index: int, split: str) -> float:
    """Play the task at `index` of a split for few turns; no valid reward counts as 0.

    What a player without skill makes an env raise is another check's finding.
    """
    try:
        task_id = env.tasks(split)[index].task_id
        options = {"task_id": task_id, "split": split}
        observation, _ = await env.areset(seed=index, options=options)
        for _ in range(MAX_CHEAP_STEPS):
            observation, _, terminated, truncated, _ = await env.astep(act(env, observation))
            if terminated or truncated:
                break
        else:
            await env.atruncate(FailureKind.MAX_TURNS)
        return env.last_reward.value or 0.0 if env.last_reward is not None else 0.0
    except Exception:
        await env.aclose()
        return 0.0


def oracle(env: Env, observation: Observation) -> Action:
    """Return the gold action; `Skipped` where the env has none."""
    try:
        return env.oracle_action()
    except NotImplementedError as e:
        raise Skipped(str(e)) from e


async def transcript(env: Env, seed: int) -> tuple[str, list[Message], float]:
    """Play by the oracle, else at random, and return task id, messages and reward."""
    rng = random.Random(seed)
    try:
        value, messages = await play(env, oracle, seed=seed)
    except Skipped:
        value, messages = await play(env, lambda env, _: env.random_action(rng), seed=seed)
    return env.task.task_id, messages, value


def spread(count: int, limit: int) -> Iterator[int]:
    """Yield at most `limit` indices spread evenly over `count` of them, in order.

    Neighbours make no sample: tasks may stand sorted, or take turns.
    """
    num = min(count, limit)
    yield from (i * count // num for i in range(num))
