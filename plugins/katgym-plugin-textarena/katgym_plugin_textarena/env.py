"""The env: a game of TextArena, won or not won.

Upstream pays a part for games that are given up, and forgives any number of invalid moves as long
as a valid one lies between, so that guesses can be checked for nothing. Here a game pays 1 or 0,
and is lost with the `MAX_INVALID`-th invalid move. Not here: the games (`games.py`).
"""

from __future__ import annotations

import random
import re
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from textarena import ObservationType

import katgym
from katgym.environment.messages import Action, Message
from katgym.errors import check_name
from katgym_plugin_textarena.games import RULES, Game, upstream

MAX_INVALID = 3
MAX_ACTION = 1000
"""Characters of a message that a game reads, from its end."""
_KINDS = set(ObservationType) - {ObservationType.PLAYER_ACTION}
_lock = threading.Lock()
"""Held while upstream draws from the generator of the whole process, which is then put back."""


class TextArenaEnv(katgym.Env):
    """A game; the last square brackets of a message are a move."""

    default_max_turns = 120

    def __init__(self, *, game: str, level: str | None = None, **kwargs: Any) -> None:
        """Choose a game of `RULES` and one of its levels; None is the first."""
        super().__init__(**kwargs)
        self.game_name = check_name("game", game, RULES)
        self.rules = RULES[game]
        levels = self.rules.levels
        self.level = check_name("level", next(iter(levels)) if level is None else level, levels)

    def load_tasks(self, split: str) -> katgym.TaskSet:
        prefix, splits = f"{self.level}-", self.splits if self.rules.is_open else ()
        return katgym.ProceduralTaskSet(self.draw, split=split, prefix=prefix, splits=splits)

    def draw(self, rng: np.random.Generator, index: int = 0) -> katgym.Task:
        """Return a task whose game can be won; with an opponent, by one first move alone.

        Upstream divides by zero where Lights Out has no light on; another is drawn then.
        """
        while True:
            seed = int(rng.integers(2**31))
            with suppress(ZeroDivisionError):
                game, text = self._begin(seed)
                num_wins = 0 if game.state.done else len(self.rules.solve(game))
                if num_wins == 1 or (num_wins and self.rules.num_opening is None):
                    shown = text if self.rules.is_open else ""
                    return katgym.Task(task_id="", prompt=shown, data={"seed": seed})

    def _begin(self, seed: int) -> tuple[Game, str]:
        rules = self.rules
        with _lock:
            outside = random.getstate()
            random.seed(seed)
            try:
                game = (rules.make or upstream(self.game_name))(**rules.levels[self.level])
                game.reset(num_players=1 if rules.num_opening is None else 2, seed=seed)
                told = _news(game)
                for _ in range(rules.num_opening or 0):
                    game.step(rules.move(game, random))
                    told[1:] = _news(game)[-1:]
            finally:
                random.setstate(outside)
        return game, "\n".join(told)

    async def setup(self) -> None:
        self.game, self._text = self._begin(self.task.data["seed"])
        self.num_invalid, self.opponent_rng = 0, random.Random(self.task.data["seed"])

    def opening(self) -> str:
        return f"{self._text}\nA message's last [...] is your move; the third invalid move loses."

    def reply(self, message: Message) -> list[Message]:
        """Hand the move to the game, and let the opponent answer."""
        state = self.game.state
        state.error_count = 0  # counted here, where a valid move between forgives nothing
        text = message["content"][-MAX_ACTION:]
        self.game.step((re.findall(r"\[[^\[\]]*\]", text) or [text])[-1])
        if state.current_player_id == 0:
            self.num_invalid += bool(state.error_count)
        elif not state.done:
            best = self.rules.solve(self.game) or [self.rules.move(self.game, self.opponent_rng)]
            self.game.step(self.opponent_rng.choice(best))
        text = "\n".join(_news(self.game))
        if state.done:
            self.finish("won" if self.won() else "lost")
            text = f"{text}\n{state.game_info[0].get('reason', '')}".strip()
        elif self.num_invalid >= MAX_INVALID:
            self.finish("invalid moves")
            text += "\nThat was the third invalid move: you lose."
        return [katgym.user(text)]

    @katgym.scorer()
    def won(self) -> bool:
        """Whether the game was won, by its state: upstream's reward is not asked."""
        return bool(self.game.state.done and self.rules.is_won(self.game))

    @katgym.scorer(weight=0.0)
    def invalid_moves(self) -> int:
        """Invalid moves made."""
        return self.num_invalid

    def oracle_action(self) -> Action:
        """Make the next move of a solution."""
        return self.rules.solve(self.game)[0]

    def random_action(self, rng: random.Random) -> Action:
        """Make a move of the right form."""
        return self.rules.move(self.game, rng)


def _news(game: Game) -> list[str]:
    """Return what the game told the first player since the last look, without players' messages.

    Countdown hands a message over in the place of its kind.
    """
    told, game.state.observations[0] = game.state.observations[0], []
    return [text.strip() for _, text, kind in told if kind in _KINDS]
