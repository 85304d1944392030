"""Plays one episode of an env to its end, step by step, without a policy.

Not here: rollouts (`katgym.run_rollout`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import katgym


def play(move: str) -> Any:
    """Return an action that calls tool `play` with a move."""
    return katgym.assistant("", [("play", {"move": move})])


def finish(env: Any, action_of: Callable[[Any], Any]) -> tuple[float, dict[str, Any]]:
    """Play until the end; return the reward and the info."""
    while True:
        _, reward, terminated, truncated, info = env.step(action_of(env))
        if terminated or truncated:
            return reward, info


def play_oracle(env: Any, **reset: Any) -> float:
    """Play an episode with the env's own solution; return the reward."""
    env.reset(**reset)
    return finish(env, lambda env: env.oracle_action())[0]
