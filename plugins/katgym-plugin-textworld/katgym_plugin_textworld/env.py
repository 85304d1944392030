"""The envs: a game of TextWorld, one command a turn.

Not here: how games are made (`games.py`), what a player reads (`description.py`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from textworld.generator.game import GameProgression
from textworld.generator.inform7 import Inform7Game

import katgym
from katgym.environment.messages import Action, Message
from katgym.errors import ToolError
from katgym_envs.games.moves import IllegalMoveError, last_line, match_move
from katgym_plugin_textworld.description import Describer
from katgym_plugin_textworld.games import COOKING, make_game

OPENING = """\
You are in a text adventure. {objective}
Give one command a turn with act(command), or alone on the last line of your message.

{room}

{commands}"""


class TextWorldEnv(katgym.Env):
    """A kind of game; reward 1 for a game that is won, 0 for every other end."""

    kind: ClassVar[str]
    default_level: ClassVar[int]
    allowed_levels: ClassVar[Collection[int]]
    default_max_turns = 60

    def __init__(self, *, level: int | None = None, **kwargs: Any) -> None:
        """Choose how hard the games are; None is the kind's default level."""
        super().__init__(**kwargs)
        self.level = self.default_level if level is None else level
        if type(self.level) is not int or self.level not in self.allowed_levels:
            allowed = f"1 to {max(self.allowed_levels)}"
            raise katgym.UsageError(f"unknown level {level!r}; allowed: {allowed}")

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, _: int) -> katgym.Task:
            seed = int(rng.integers(2**28)) * 3 + self.splits.index(split)
            return katgym.Task(task_id="", data={"level": self.level, "seed": seed})

        prefix = f"{self.kind}-{self.level}-"
        return katgym.ProceduralTaskSet(make_task, split=split, prefix=prefix)

    async def setup(self) -> None:
        game = make_game(self.kind, self.level, self.task.split, self.task.data["seed"])
        self._progress = GameProgression(game, track_quests=True)
        self._texts = Describer(game)
        self._inform = Inform7Game(game)
        self._walkthrough = list(game.walkthrough)

    def opening(self) -> str:
        return OPENING.format(
            objective=self._texts.game.objective,
            room=self._texts.room(self._progress.state),
            commands=self._list_commands(),
        )

    def _commands(self) -> Mapping[str, Any]:
        actions = self._progress.valid_actions
        texts = self._inform.gen_commands_from_actions(actions)
        # Where hands have slots, one command stands for several actions that do the same.
        return dict(sorted(zip(texts, actions, strict=True), key=lambda p: (p[0], str(p[1]))))

    def _list_commands(self) -> str:
        return f"Commands: {' | '.join(self._commands())}"

    @katgym.tool
    async def act(self, command: str) -> str:
        """Give the game a command.

        Args:
            command: One of the commands listed, for example "go north".
        """
        if self._is_terminated:
            raise ToolError("The game is over.")
        return self._play(command)

    def reply(self, message: Message) -> Sequence[Message]:
        """Take the last line of the message as the command."""
        try:
            return [katgym.user(self._play(last_line(message["content"])))]
        except IllegalMoveError as e:
            return [katgym.user(str(e))]

    def _play(self, text: str) -> str:
        commands = self._commands()
        try:
            command = match_move(text, commands)
        except IllegalMoveError as e:
            raise IllegalMoveError(f"{e} {self._list_commands()}") from e
        score = self._progress.score
        self._progress.update(commands[command])
        shown = self._feedback(command)
        if self._progress.score > score:
            shown += " You did a part of your task."
        if self._progress.done:
            self.finish("won" if self._progress.completed else "lost")
            return f"{shown}\nThe game is over: you {self.end_reason}."
        return f"{shown}\n\n{self._list_commands()}"

    def _feedback(self, command: str) -> str:
        state, texts = self._progress.state, self._texts
        verb, _, rest = command.partition(" ")
        if verb in ("inventory", "examine"):
            return texts.thing(rest, state) if rest else texts.inventory(state)
        done = "" if verb == "look" else f"You {command}.\n"
        return done + (texts.room(state) if verb in ("look", "go", "open") else "Done.")

    @katgym.scorer()
    def won(self) -> bool:
        """Whether the game was won."""
        return bool(self._progress.completed)

    @katgym.scorer(weight=0.0)
    def score(self) -> float:
        """The game's own score, as a share of what there is."""
        return float(self._progress.score / self._texts.game.max_score)

    def oracle_action(self) -> Action:
        """Follow the walkthrough, leaving out what has become needless."""
        commands = self._commands()
        while self._walkthrough[0] not in commands:
            self._walkthrough.pop(0)
        return katgym.assistant("", [("act", {"command": self._walkthrough.pop(0)})])

    def random_action(self, rng: random.Random) -> Action:
        """Give any command that the game takes."""
        return katgym.assistant("", [("act", {"command": rng.choice(list(self._commands()))})])


class CoinCollector(TextWorldEnv):
    """Rooms in a chain, with side rooms from level 101 on; level modulo 100 is the way's length."""

    kind = "tw-coin_collector"
    default_level = 10
    allowed_levels = range(1, 301)


class TreasureHunter(TextWorldEnv):
    """5, 10 or 20 rooms, with doors and containers from level 11 on; a wrong thing loses."""

    kind = "tw-treasure_hunter"
    default_level = 5
    allowed_levels = range(1, 31)


class Cooking(TextWorldEnv):
    """A recipe of 1 to 3 ingredients in 1 to 12 rooms; wasted food loses."""

    kind = "tw-cooking"
    default_level = 2
    allowed_levels = COOKING
