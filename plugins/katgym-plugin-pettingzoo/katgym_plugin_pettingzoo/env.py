"""The bridge: a PettingZoo AEC game of two players as an env, with moves as text.

A game is a subclass of `AecGameEnv` that makes the AEC env, and puts its observations and actions
into words. Every observation has to hold an `action_mask`, as in `pettingzoo.classic`. Not here:
the games (`games.py`), who plays against the policy (`search.py`); a katgym env as a PettingZoo
one (`katgym.play.aec_env`).
"""

from __future__ import annotations

import abc
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pettingzoo import AECEnv

import katgym
from katgym.environment.env import StepResult
from katgym.environment.messages import Action
from katgym.environment.reward import Headline
from katgym.errors import check_name
from katgym_envs.games.moves import MoveEnv, list_moves, match_move

OPPONENTS = ("random", "minimax", "self")
MARKS = ("X", "O")
"""Of the agent that begins, and of the other."""

OPENING = """\
{rules} You are {mark}.
Make a move with play(move), or answer with the move alone on the last line.

{view}"""


class AecGameEnv(MoveEnv):
    """A game; reward 1 for a win, 0.5 for a draw, 0 for a loss.

    With `opponent="self"` both agents of the game are seats, for `katgym.run_match` and, through
    `katgym.play.aec_env`, for PettingZoo again.
    """

    success = katgym.Success(component="win", headline=Headline.MEAN_REWARD)
    rules: str
    is_exact = False
    """Whether `best_move` is proven best, and the game's value is a draw."""
    default_max_turns = 100

    def __init__(self, *, opponent: str = "random", **kwargs: Any) -> None:
        """Choose who plays: `"random"`, `"minimax"`, or `"self"` for policies in both seats."""
        check_name("opponent", opponent, OPPONENTS)
        self.opponent = opponent
        self.game = self.make_game()
        if opponent == "self":
            self.seats = tuple(self.game.possible_agents)
        super().__init__(**kwargs)

    # ---- what a game defines

    @abc.abstractmethod
    def make_game(self) -> AECEnv:
        """Return a new AEC env of two agents."""

    @abc.abstractmethod
    def board_text(self, observation: Mapping[str, Any]) -> str:
        """Return what an agent observes; player 0 plays with `MARKS[0]`."""

    @abc.abstractmethod
    def move_text(self, action: int) -> str:
        """Return the text of an action."""

    @abc.abstractmethod
    def best_move(self, observation: Mapping[str, Any], rng: random.Random) -> int:
        """Return a strong action of the agent that observes this."""

    # ---- the episode

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make(rng: np.random.Generator, index: int) -> katgym.Task:
            player = 0 if self.opponent == "self" else int(rng.integers(2))
            data = {"player": player, "seed": int(rng.integers(2**31))}
            return katgym.Task(task_id="", data=data)

        return katgym.ProceduralTaskSet(make, split=split, prefix=f"{type(self).__name__}-")

    async def setup(self) -> None:
        self.begin_game()
        self.game = self.make_game()
        self.game.reset(seed=self.task.data["seed"])
        self.player = self.task.data["player"]
        seed = f"{self.task.data['seed']} {self.np_random.integers(2**31)}"
        self._rng = random.Random(seed)
        self._returns = dict.fromkeys(self.game.possible_agents, 0.0)
        self._inbox: dict[str, list[Any]] = {seat: [] for seat in self.seats}
        self._greeted = {self.seats[0]}
        self._answer()

    def _answer(self) -> str:
        """Let the opponent move, or hand the turn to the next seat; return what was played."""
        played = ""
        is_opponents = self.opponent != "self" and self._mover() != self.player
        if is_opponents and not self._is_over():
            moves = list(self._moves().values())
            action = self._best_move() if self.opponent == "minimax" else self._rng.choice(moves)
            self._apply(action)
            played = f" Your opponent played {self.move_text(action)}."
        if self._is_over():
            self.finish("game_over")
        elif self.opponent == "self":
            self.player = self._mover()
            self.seat = self.seats[self.player]
        return played

    def _mover(self) -> int:
        return int(self.game.possible_agents.index(self.game.agent_selection))

    def _is_over(self) -> bool:
        return all(self.game.terminations.values()) or all(self.game.truncations.values())

    def _apply(self, action: int) -> None:
        self.game.step(action)
        for agent, reward in self.game.rewards.items():
            self._returns[agent] += float(reward)

    def _moves(self) -> dict[str, int]:
        mask = self.game.observe(self.game.agent_selection)["action_mask"]
        return {self.move_text(int(action)): int(action) for action in np.flatnonzero(mask)}

    def _best_move(self) -> int:
        return self.best_move(self.game.observe(self.game.agent_selection), self._rng)

    async def make_move(self, text: str) -> str:
        moves = self._moves()
        move = match_move(text, moves)
        mover = self.player
        self._apply(moves[move])
        shown = f"You played {move}.{self._answer()}"
        if not self._is_over():
            return shown if self.opponent == "self" else f"{shown}\n{self._view()}"
        verdict = {1.0: "You won", 0.5: "It is a draw", 0.0: "You lost"}[self._score(mover)]
        board = self.board_text(self.game.observe(self.game.possible_agents[mover]))
        return f"{shown} {verdict}.\n{board}"

    # ---- what a seat sees

    def opening(self) -> str:
        return OPENING.format(rules=self.rules, mark=MARKS[self.player], view=self._view())

    def _view(self) -> str:
        observation = self.game.observe(self.game.possible_agents[self.player])
        return f"{self.board_text(observation)}\n{self.legal_moves_text()}"

    def legal_moves_text(self) -> str:
        return list_moves(list(self._moves()), tool_name="play")

    async def astep(self, action: Action) -> StepResult:
        """Play a move; with two seats, what is returned is for the seat that moves next."""
        actor = self.seat
        observation, reward, terminated, truncated, info = await super().astep(action)
        if self.opponent != "self":
            return observation, reward, terminated, truncated, info
        self._inbox[actor] += observation
        if self.seat != actor and not (terminated or truncated):
            text = self._view() if self.seat in self._greeted else self.opening()
            self._greeted.add(self.seat)
            self._inbox[self.seat].append(katgym.user(text))
            self.messages.append(self._inbox[self.seat][-1])
        news, self._inbox[self.seat] = self._inbox[self.seat], []
        return news, reward, terminated, truncated, info

    # ---- reward

    def _score(self, player: int) -> float:
        if self.is_forfeit:
            return float(self.opponent == "self" and player != self.player)
        if not self._is_over():
            return 0.0
        return (self._returns[self.game.possible_agents[player]] + 1) / 2

    @katgym.scorer()
    def outcome(self) -> float:
        """1 for a win, 0.5 for a draw, 0 else; with two seats the first one's."""
        return self._score(0 if self.opponent == "self" else self.player)

    @katgym.scorer(weight=0.0)
    def win(self) -> bool:
        """Whether the game was won."""
        return self.outcome() == 1.0

    def seat_rewards(self) -> Mapping[str, katgym.Reward]:
        first = self.last_reward
        if self.opponent != "self" or first is None or not first.is_valid:
            return super().seat_rewards()
        return {
            seat: replace(first, value=self._score(player), components={})
            for player, seat in enumerate(self.seats)
        }

    def oracle_minimum(self) -> float:
        """Return half a point where the oracle cannot lose, else nothing."""
        return 0.5 if self.is_exact else 0.0

    def oracle_action(self) -> Action:
        """Play the game's own strong move."""
        return self.move_action(self.move_text(self._best_move()))

    def random_action(self, rng: random.Random) -> Action:
        """Play any legal move."""
        return self.move_action(rng.choice(list(self._moves())))
