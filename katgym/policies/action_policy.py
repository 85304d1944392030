"""Policies that need no model: `oracle` plays the env's own solution, `random` and `noop` below it.

`oracle?max_calls=1` gives the solution's tool calls one a turn: a teacher that works step by step.
`oracle?accuracy=0.6` plays six episodes of ten by the solution, the others at random.

Not here: the solutions and what makes sense (`Env.oracle_action`, `Env.random_action`); actions
from a file (`scripted.py`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from katgym.environment.messages import Action, Message, normalize_action
from katgym.errors import UsageError
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.uri_options import parse_options


class ActionPolicy(Policy):
    """Answers each turn of an episode with the next action of an iterator; records no tokens."""

    def __init__(self, name: str, begin: Callable[[EpisodeContext], Iterator[Action]]) -> None:
        """begin: returns an episode's actions, which never end."""
        self.name = name
        self._begin = begin

    def start(self, context: EpisodeContext) -> Session:
        return _ActionSession(self._begin(context))


class _ActionSession(Session):
    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        return Completion(message=normalize_action(next(self._actions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleConfig:
    """Options of the `oracle` policy; the same names stand in the URI."""

    max_calls: int | None = None
    """Tool calls of one turn; None: as many as the env's solution makes."""

    accuracy: float = 1.0
    """Chance that an episode is played by the solution; the others are played at random."""

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise UsageError(f"accuracy is between 0 and 1, got {self.accuracy!r}")
        if self.max_calls is not None and self.max_calls < 1:
            raise UsageError(f"max_calls is an int >= 1, got {self.max_calls!r}")


def oracle_actions(context: EpisodeContext, max_calls: int | None = None) -> Iterator[Message]:
    """Yield the solution's actions.

    Calls beyond `max_calls` are given in the next turns, and the env is asked again when none is
    left: a solution that counts its results or its turns never meets half of them. An episode with
    too few turns for that ends before the solution does.
    """
    while True:
        message = normalize_action(context.env.oracle_action())
        calls = message.get("tool_calls", [])
        size = max_calls or len(calls)
        yield {**message, "tool_calls": calls[:size]}
        while calls := calls[size:]:
            yield {"role": "assistant", "content": "", "tool_calls": calls[:size]}


def random_actions(context: EpisodeContext) -> Iterator[Action]:
    """Yield random actions that make sense in the env; the same seed plays the same ones."""
    rng = random.Random(context.seed)
    while True:
        yield context.env.random_action(rng)


def oracle(rest: str) -> ActionPolicy:
    """Return the policy of `oracle{rest}`, which takes options alone."""
    if rest and not rest.startswith("?"):
        raise UsageError(f"policy 'oracle' takes nothing behind its name, got {rest!r}")
    form = "oracle[?option=value&...]"
    _, config = parse_options(f"oracle{rest}", OracleConfig, form=form)

    def begin(context: EpisodeContext) -> Iterator[Action]:
        if random.Random(context.seed).random() < config.accuracy:
            return oracle_actions(context, config.max_calls)
        return random_actions(context)

    return ActionPolicy(f"oracle{rest}", begin)


def random_play(rest: str) -> ActionPolicy:
    """Return the policy of `random`, which has no options."""
    if rest:
        raise UsageError(f"policy 'random' takes nothing behind its name, got {rest!r}")
    return ActionPolicy("random", random_actions)


def noop(rest: str) -> ActionPolicy:
    """Return the policy of `noop`, which says nothing, calls nothing and has no options."""
    if rest:
        raise UsageError(f"policy 'noop' takes nothing behind its name, got {rest!r}")
    return ActionPolicy("noop", lambda _: itertools.repeat(""))
