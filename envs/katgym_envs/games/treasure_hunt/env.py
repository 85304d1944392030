"""`katgym/TreasureHunt-v1`: inspect places at the same time, then open the one right chest.

Not here: how hunts are made and what makes them solvable (`hunt.py`).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import katgym
from katgym.environment.messages import Action, Message
from katgym.errors import ToolError, UsageError
from katgym_envs.games.moves import last_line
from katgym_envs.games.treasure_hunt.hunt import (
    DUST,
    LEVELS,
    MAX_LEVEL,
    NUM_LOCKERS,
    Fact,
    chest_text,
    fact_text,
    fits,
    make_hunt,
)

_LOCKER = re.compile(r"locker (\d{1,4})")
_CHEST = re.compile(r"\bchest\s*#?\s*(\d+)\b|^\W*(\d+)\W*$", re.IGNORECASE)

OPENING = """\
Somewhere in this house a treasure is hidden in one of the chests. Find out which chest, then \
open it. You may open one chest only.

Notes lie in some of the places. {seals}Together the true notes leave exactly one chest possible.
{lockers}
Places:
{places}

Chests:
{chests}

inspect(place) shows what is in a place. You can make several inspect calls in one message; they \
take one turn together. open_chest(number) opens a chest and ends the hunt.
You have {max_turns} turns (messages) in all, and opening the chest takes one of them."""
SEALS = (
    "A note with the owl seal is true and belongs to this hunt. Notes with any other seal are"
    " false trails: ignore them. "
)
TRUE_NOTES = "Every note has the owl seal and is true. "
LOCKERS = (
    "There are also {count} lockers, 'locker 0' to 'locker {last}'; notes tell which to inspect.\n"
)


class TreasureHuntEnv(katgym.Env):
    """A hunt through rooms, notes and chests; see the folder's README."""

    levels = {str(level): {"level": level} for level in LEVELS}  # noqa: RUF012 - a ClassVar of Env

    def __init__(self, *, level: int = 1, max_turns: int | None = None, **kwargs: Any) -> None:
        """Prepare hunts of one level.

        level: 1 (easiest) to 10; from 6 on the turns suffice only for parallel calls.
        max_turns: None for the level's own number.
        """
        if isinstance(level, bool) or not isinstance(level, int) or level not in LEVELS:
            raise UsageError(f"level is an int from 1 to {MAX_LEVEL}, got {level!r}")
        self.level = level
        chosen = LEVELS[level].max_turns if max_turns is None else max_turns
        super().__init__(max_turns=chosen, **kwargs)
        self._start()

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make(rng: np.random.Generator, index: int) -> katgym.Task:
            stream = np.random.default_rng([self.level, *rng.integers(2**32, size=2).tolist()])
            hunt = make_hunt(LEVELS[self.level], stream)
            data = {"level": self.level, **hunt}
            return katgym.Task(task_id="", answer=hunt["treasure"], data=data)

        return katgym.ProceduralTaskSet(make, split=split, prefix=f"L{self.level}-")

    async def setup(self) -> None:
        self._start()
        data = self.task.data
        self._places |= {p for places in data["places"].values() for p in places}

    def _start(self) -> None:
        self.inspected: set[str] = set()
        self.opened: int | None = None
        self._places: set[str] = set()

    def opening(self) -> str:
        data = self.task.data
        level = LEVELS[self.level]
        rooms = [f"- {room}: {', '.join(places)}" for room, places in data["places"].items()]
        chests = [f"- chest {n}: {chest_text(c)}" for n, c in enumerate(data["chests"], start=1)]
        lockers = LOCKERS.format(count=NUM_LOCKERS, last=NUM_LOCKERS - 1)
        return OPENING.format(
            seals=SEALS if level.num_false_trails else TRUE_NOTES,
            lockers=lockers if level.depth > 1 else "",
            places="\n".join(rooms),
            chests="\n".join(chests),
            max_turns=self._episode_max_turns,
        )

    @katgym.tool(parallel=True)
    async def inspect(self, place: str) -> str:
        """Look into one place and read what is there. Several calls can go in one message.

        Args:
            place: A place from the list, for example "kitchen table", or "locker 12".
        """
        name = " ".join(place.casefold().split()).removeprefix("the ")
        locker = _LOCKER.fullmatch(name)
        if locker is not None and int(locker[1]) < NUM_LOCKERS:
            name = f"locker {int(locker[1])}"
        elif name not in self._places:
            raise ToolError(
                f"There is no place {place!r:.100}. Places: {', '.join(sorted(self._places))}."
            )
        self.inspected.add(name)
        notes: Mapping[str, str] = self.task.data["notes"]
        return notes.get(name, DUST)

    @katgym.tool
    async def open_chest(self, number: int) -> str:
        """Open one chest. This ends the hunt.

        Args:
            number: The chest's number from the list.
        """
        if self._is_terminated:
            raise ToolError("The hunt is over: one chest was opened already.")
        return self._open(number)

    def _open(self, number: int) -> str:
        count = len(self.task.data["chests"])
        if not 1 <= number <= count:
            raise ToolError(f"There is no chest {number}. Chests: 1 to {count}.")
        self.opened = number
        self.finish("opened_chest")
        return "The treasure is here!" if number == self.task.answer else "The chest is empty."

    def reply(self, message: Message) -> Sequence[Message]:
        """Open the chest that the last line names, like `chest 3` or `3`; else say how to go on."""
        named = {int(a or b) for a, b in _CHEST.findall(last_line(message["content"])[:1000])}
        if len(named) == 1:
            try:
                return [katgym.user(self._open(named.pop()))]
            except ToolError as e:
                return [katgym.user(str(e))]
        left = self._episode_max_turns - self.num_turns
        return [
            katgym.user(
                "Use the tool inspect(place) to look for notes and open_chest(number) to open the"
                f" chest. Turns left: {left}."
            )
        ]

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the right chest was opened."""
        return bool(self.opened == self.task.answer)

    @katgym.scorer(weight=0.0)
    def facts_read(self) -> float:
        """Fraction of the true facts that were read."""
        trails = self.task.data["trails"]
        return sum(trail[-1] in self.inspected for trail in trails) / len(trails)

    @katgym.scorer(weight=0.0)
    def num_inspected(self) -> int:
        """Different places inspected."""
        return len(self.inspected)

    def oracle_action(self) -> Action:
        """Inspect all that may matter in one turn, and open the chest that what was read leaves.

        It goes by what a player has read, so that its episodes can be learned from.
        """
        data = self.task.data
        trails, chests = data["trails"], data["chests"]
        facts: list[Fact] = [
            fact
            for trail, fact in zip(trails, data["facts"], strict=True)
            if trail[-1] in self.inspected
        ]
        left = [n for n, c in enumerate(chests, start=1) if fits(c, facts)]
        if len(left) == 1:
            number = left[0]
            seen = [f"chest {n}: {chest_text(c)}" for n, c in enumerate(chests[:number], start=1)]
            search = f"{'; '.join(seen)}. That is chest {number}."
            said = " ".join([*map(fact_text, facts), search])
            return katgym.assistant(said, [("open_chest", {"number": number})])
        lockers = [  # the ones that the true notes read so far lead to
            following
            for trail in trails
            for place, following in itertools.pairwise(trail)
            if place in self.inspected
        ]
        places = [p for places in data["places"].values() for p in places]
        unread = [p for p in lockers + places if p not in self.inspected]
        return katgym.assistant("", [("inspect", {"place": place}) for place in unread])

    def random_action(self, rng: random.Random) -> Action:
        """Inspect up to three places, or open a chest."""
        if rng.random() < 0.2:
            number = rng.randint(1, len(self.task.data["chests"]))
            return katgym.assistant("", [("open_chest", {"number": number})])
        places = rng.sample(sorted(self._places), k=rng.randint(1, min(3, len(self._places))))
        return katgym.assistant("", [("inspect", {"place": place}) for place in places])
