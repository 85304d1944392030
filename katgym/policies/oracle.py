"""`oracle`: plays the env's own solution; the check that an env can be solved.

`oracle?max_calls=1` gives the solution's tool calls one a turn: a teacher that works step by step.

Not here: the solutions (`Env.oracle_action`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from katgym.environment.messages import Message, ToolCallMessage, normalize_action
from katgym.errors import UsageError
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.uri_options import parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleConfig:
    """Options of the `oracle` policy; the same names stand in the URI."""

    max_calls: int | None = None
    """Tool calls of one turn; None: as many as the env's solution makes."""

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < 1:
            raise UsageError(f"max_calls is an int >= 1, got {self.max_calls!r}")


class OraclePolicy(Policy):
    """Answers every turn with `env.oracle_action()`."""

    def __init__(self, *, name: str = "oracle", config: OracleConfig | None = None) -> None:
        self.name = name
        self.config = config or OracleConfig()

    def start(self, context: EpisodeContext) -> OracleSession:
        return OracleSession(context, max_calls=self.config.max_calls)


class OracleSession(Session):
    """One episode of the oracle.

    Calls beyond `max_calls` are given in the next turns, and the env is asked again when none is
    left: a solution that counts its results or its turns never meets half of them. An episode with
    too few turns for that ends before the solution does.
    """

    def __init__(self, context: EpisodeContext, *, max_calls: int | None = None) -> None:
        self._env = context.env
        self._max_calls = max_calls
        self._left: list[ToolCallMessage] = []

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        message: Message = {"role": "assistant", "content": ""}
        if not self._left:
            message = normalize_action(self._env.oracle_action())
            self._left = list(message.get("tool_calls", ()))
        if self._left:
            message["tool_calls"] = self._left[: self._max_calls]
            self._left = self._left[len(message["tool_calls"]) :]
        return Completion(message=message)


def from_uri(rest: str) -> OraclePolicy:
    """Return the policy of `oracle{rest}`, which takes options alone."""
    if rest and not rest.startswith("?"):
        raise UsageError(f"policy 'oracle' takes nothing behind its name, got {rest!r}")
    form = "oracle[?option=value&...]"
    name, config = parse_options(f"oracle{rest}", OracleConfig, form=form)
    return OraclePolicy(name=f"{name}{rest}", config=config)
