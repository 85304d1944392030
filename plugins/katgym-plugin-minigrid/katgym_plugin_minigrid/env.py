"""The envs: a level of Minigrid, a few moves a turn.

Not here: which levels (`levels.py`), what is seen (`view.py`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot

import katgym
from katgym.environment.messages import Action, Message
from katgym.errors import ToolError, check_name
from katgym_envs.games.moves import last_line
from katgym_plugin_minigrid.levels import find_levels, make_level
from katgym_plugin_minigrid.view import LEGEND, view_text

MOVES: Mapping[str, int] = {
    "turn left": 0,
    "turn right": 1,
    "go forward": 2,
    "pick up": 3,
    "drop": 4,
    "toggle": 5,
    "done": 6,
}
"""Words -> Minigrid's actions."""
MAX_MOVES = 8
"""Moves of one turn."""

OPENING = """\
You are an agent in a grid. Your mission: {mission}.
Each turn, make up to {max_moves} moves with act(moves), or write them on the last line of your \
message, with commas between: {moves}. pick up, drop and toggle (which opens doors and boxes, with \
the key in your hands where they are locked) act on the cell before you. You have {steps} moves.
{legend}

{view}"""


class GridEnv(katgym.Env):
    """A level; reward 1 for a mission that is done in time, 0 for every other end."""

    family: ClassVar[str]
    default_level: ClassVar[str]
    default_max_turns = 64

    def __init__(self, *, level: str | None = None, **kwargs: Any) -> None:
        """Choose a level by its name upstream, without family and version; None is the default."""
        super().__init__(**kwargs)
        self.level = self.default_level if level is None else level
        check_name("level", self.level, find_levels(self.family))

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, _: int) -> katgym.Task:
            seed = int(rng.integers(2**31))
            grid = make_level(self.family, self.level, seed)
            data = {"level": self.level, "seed": seed}
            return katgym.Task(task_id="", prompt=_opening(grid), data=data)

        return katgym.ProceduralTaskSet(
            make_task,
            split=split,
            prefix=f"{self.level}-",
            splits=self.splits,  # by the opening, so that no two splits share one
        )

    async def setup(self) -> None:
        self._grid = make_level(self.family, self.level, self.task.data["seed"])
        self._reward = 0.0
        self._plan: list[str] | None = None

    @katgym.tool
    async def act(self, moves: list[str]) -> str:
        """Make moves, one after the other.

        Args:
            moves: Up to 8 of "turn left", "turn right", "go forward", "pick up", "drop",
                "toggle", "done".
        """
        if self._is_terminated:
            raise ToolError("The episode is over.")
        return self._move(moves)

    def reply(self, message: Message) -> Sequence[Message]:
        """Take the last line of the message as the moves."""
        try:
            return [katgym.user(self._move(last_line(message["content"]).split(",")))]
        except ToolError as e:
            return [katgym.user(str(e))]

    def _move(self, moves: Sequence[str]) -> str:
        names = [" ".join(move.casefold().split()).rstrip(".") for move in moves]
        wrong = [name for name in names if name not in MOVES]
        if wrong or not 1 <= len(names) <= MAX_MOVES:
            allowed = ", ".join(MOVES)
            what = f"{wrong[0][:80]!r} is no move" if wrong else f"got {len(names)} moves"
            raise ToolError(f"{what}: give 1 to {MAX_MOVES} of {allowed}. Nothing was done.")
        for number, name in enumerate(names, start=1):
            _, reward, terminated, truncated, _ = self._grid.step(MOVES[name])
            if terminated or truncated:
                self._reward = float(reward) if terminated else 0.0
                is_done = self._reward > 0
                self.finish("done" if is_done else "failed" if terminated else "out of moves")
                end = "Mission done." if is_done else "You failed the mission."
                return f"After {number} moves: {end if terminated else 'You are out of moves.'}"
        left = self._grid.max_steps - self._grid.step_count
        return f"{view_text(self._grid)}\n{left} moves left."

    @katgym.scorer()
    def mission_done(self) -> bool:
        """Whether the mission was done; upstream's reward, which shrinks with moves, is `speed`."""
        return self._reward > 0

    @katgym.scorer(weight=0.0)
    def speed(self) -> float:
        """Upstream's reward: 1 less 0.9 for the share of the moves that was used."""
        return self._reward

    def random_action(self, rng: random.Random) -> Action:
        """Make up to eight random moves."""
        moves = [rng.choice(list(MOVES)[:6]) for _ in range(rng.randint(1, MAX_MOVES))]
        return katgym.assistant("", [("act", {"moves": moves})])


class BabyAI(GridEnv):
    """BabyAI's levels; the oracle is upstream's bot."""

    family = "BabyAI"
    default_level = "GoToLocal"
    levels: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"level": name} for name in ("GoToLocal", "PickupLoc", "PutNextLocal", "BossLevel")
    }

    def oracle_action(self) -> Action:
        """Play what the bot did in a copy of the grid, up to eight moves a turn."""
        if self._plan is None:
            self._plan = _bot_moves(copy.deepcopy(self._grid))
        moves, self._plan = self._plan[:MAX_MOVES], self._plan[MAX_MOVES:]
        return katgym.assistant("", [("act", {"moves": moves})])


class MiniGrid(GridEnv):
    """Minigrid's own levels, for which upstream has no solver."""

    family = "MiniGrid"
    default_level = "DoorKey-6x6"
    levels: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"level": name} for name in ("Empty-Random-6x6", "DoorKey-6x6", "LavaCrossingS9N1")
    }


def _opening(grid: Any) -> str:
    return OPENING.format(
        mission=grid.mission,
        max_moves=MAX_MOVES,
        moves=", ".join(MOVES),
        steps=grid.max_steps,
        legend=LEGEND,
        view=view_text(grid),
    )


def _bot_moves(grid: Any) -> list[str]:
    """Return the moves with which the bot ends the episode."""
    words = {number: word for word, number in MOVES.items()}
    bot, moves, action, is_over = BabyAIBot(grid), [], None, False
    while not is_over:
        action = bot.replan(action)
        _, _, terminated, truncated, _ = grid.step(action)
        moves.append(words[int(action)])
        is_over = terminated or truncated
    return moves
