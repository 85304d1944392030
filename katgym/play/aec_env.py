"""A katgym env as a PettingZoo AEC env (agent environment cycle): its seats are the agents.

    env = AecEnv(katgym.make("katgym/OpenSpiel-v0", game="tic_tac_toe", opponent="self"))
    env.reset(seed=0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        env.step(None if terminated or truncated else choose(agent, observation["messages"]))

Not here: policies in the seats and their rollouts (`match.py`).
"""

from __future__ import annotations

import logging
from typing import Any

from gymnasium import spaces

from katgym.environment.env import RESET_OPTIONS, Env
from katgym.environment.messages import Action, Message
from katgym.environment.spaces import AssistantMessage, Messages
from katgym.errors import MissingDependencyError, UsageError
from katgym.play.agent_loop import resolve_env

try:
    from pettingzoo import AECEnv
except ImportError as e:
    raise MissingDependencyError(
        "a view for PettingZoo needs PettingZoo: pip install pettingzoo"
    ) from e

logger = logging.getLogger(__name__)


class AecEnv(AECEnv):  # type: ignore[misc]  # PettingZoo has no types
    """The env's seats take turns; it passes `pettingzoo.test.api_test`.

    An agent observes `{"messages": [...]}`: what came for its seat since it acted last. Its action
    is an assistant message or a `str`. Rewards are 0.0 until the episode ends for all agents, and
    then those of `Env.seat_rewards`; NaN where one could not be established.
    """

    def __init__(self, env: Env | str) -> None:
        """Take an env, also one wrapped by `gymnasium.make`, or the id of one."""
        super().__init__()
        self.env = resolve_env(env)
        self.render_mode = self.env.render_mode
        name = self.env.spec.id if self.env.spec else type(self.env).__name__
        self.metadata = {**self.env.metadata, "name": name, "is_parallelizable": False}
        self.possible_agents: list[str] = list(self.env.seats)
        self.agents: list[str] = []
        self.observation_spaces = {
            seat: spaces.Dict({"messages": Messages()}) for seat in self.possible_agents
        }
        self.action_spaces = {
            seat: AssistantMessage(self.env.tools) for seat in self.possible_agents
        }

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> AssistantMessage:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; options that `Env.reset` does not know are left out with a warning."""
        known = {name: value for name, value in (options or {}).items() if name in RESET_OPTIONS}
        for name in sorted(set(options or {}) - set(known)):
            allowed = ", ".join(RESET_OPTIONS)
            logger.warning("reset option %r is left out; options are %s", name, allowed)
        observation, info = self.env.reset(seed=seed, options=known)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._messages: dict[str, list[Message]] = {agent: [] for agent in self.agents}
        self._hand_on(observation, info)

    def _hand_on(self, observation: list[Message], info: dict[str, Any]) -> None:
        self.agent_selection = self.env.seat
        self._messages[self.env.seat] += observation
        self.infos[self.env.seat] = info

    def observe(self, agent: str) -> dict[str, list[Message]]:
        return {"messages": list(self._messages[agent])}

    def step(self, action: Action | None) -> None:
        """Play the action of `agent_selection`; None takes an agent out whose episode is over."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if action is None:
            raise UsageError(
                f"agent {agent!r} is playing: its action is an assistant message or a str, got None"
            )
        self._messages[agent] = []
        self._cumulative_rewards[agent] = 0.0
        observation, _, terminated, truncated, info = self.env.step(action)
        self._hand_on(observation, info)
        for seat, reward in self.env.seat_rewards().items():
            self.rewards[seat] = reward.value_or_nan()
            self.terminations[seat], self.truncations[seat] = terminated, truncated
        self._accumulate_rewards()

    def render(self) -> str:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
