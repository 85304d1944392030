"""The env: an experiment of ScienceWorld, some commands a turn.

Not here: the simulator (`simulator.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import katgym
from katgym.environment.messages import Action, Message
from katgym.errors import ToolError, check_name
from katgym_envs.games.moves import last_line
from katgym_plugin_scienceworld.kinds import KINDS, variations
from katgym_plugin_scienceworld.simulator import World, gold_path

MAX_COMMANDS = 5
"""Commands of one turn."""
OPENING = """\
You are in a simulated house with a laboratory. {task}
Give up to {max_commands} commands a turn with act(commands), or one alone on the last line of \
your message. Among them: look around, look at THING, look in THING, inventory, open THING, \
close THING, go to PLACE, pick up THING, put down THING, move THING to PLACE, pour THING in THING, \
dunk THING in THING, mix THING, use THING on THING, activate THING, deactivate THING, \
connect THING to THING, disconnect THING, eat THING, read THING, focus on THING, wait, wait1. \
Focus only on what the task names: focusing on a wrong thing fails it.

{room}"""


class ScienceWorld(katgym.Env):
    """An experiment; reward 1 when it is done in full, 0 for every other end.

    Variations of every kind are split as upstream splits them: half, a quarter, a quarter.
    """

    default_max_turns = 100

    def __init__(self, *, kind: str | None = None, **kwargs: Any) -> None:
        """Choose a kind of task, `"boil"` say; None for all 30."""
        super().__init__(**kwargs)
        if kind is not None:
            check_name("kind", kind, KINDS)
        self.kind = kind

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(
                task_id=f"{kind}-{variation:04d}", data={"kind": kind, "variation": variation}
            )
            for kind in KINDS
            if self.kind in (None, kind)
            for variation in variations(kind, split)
        ]

    async def setup(self) -> None:
        data = self.task.data
        self._world = await asyncio.to_thread(World, data["kind"], data["variation"])
        self._num_gold = 0

    def opening(self) -> str:
        world = self._world
        return OPENING.format(task=world.description, max_commands=MAX_COMMANDS, room=world.look())

    @katgym.tool(timeout_s=120)
    async def act(self, commands: list[str]) -> str:
        """Give commands, one after the other.

        Args:
            commands: Up to 5 commands, for example "go to kitchen".
        """
        if self._is_terminated:
            raise ToolError("The experiment is over.")
        if not 1 <= len(commands) <= MAX_COMMANDS:
            raise ToolError(f"give 1 to {MAX_COMMANDS} commands, got {len(commands)}")
        return await asyncio.to_thread(self._play, commands)

    async def reply(self, message: Message) -> Sequence[Message]:
        """Take the last line of the message as the command."""
        command = last_line(message["content"])
        return [katgym.user(await asyncio.to_thread(self._play, [command]))]

    def _play(self, commands: Sequence[str]) -> str:
        told = []
        for command in commands:
            told.append(f"> {command}\n{self._world.step(command)}")
            if self._world.is_over():
                is_done = self.done()
                self.finish("done" if is_done else "failed")
                told.append("The experiment is done." if is_done else "The experiment failed.")
                break
        return "\n".join(told)

    @katgym.scorer()
    def done(self) -> bool:
        """Whether the whole task is done."""
        return self._world.score() >= 1.0

    @katgym.scorer(weight=0.0)
    def score(self) -> float:
        """Upstream's score, which pays steps on the way; 0 for a failed task."""
        return max(0.0, self._world.score())

    def oracle_action(self) -> Action:
        """Follow upstream's gold path, five commands a turn."""
        gold = gold_path(*self._world.arguments)
        commands = gold[self._num_gold : self._num_gold + MAX_COMMANDS]
        self._num_gold += len(commands)
        return katgym.assistant("", [("act", {"commands": list(commands)})])

    def random_action(self, rng: random.Random) -> Action:
        """Give any command that does something."""
        command = rng.choice(self._world.valid_commands())
        return katgym.assistant("", [("act", {"commands": [command]})])
