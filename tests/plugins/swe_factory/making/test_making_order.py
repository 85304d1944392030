"""What a set keeps of its candidates: the same whatever their speed, and after an interruption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from katgym.errors import InfrastructureError
from katgym.sandbox.backends import backend
from katgym_envs.swe.row import SweRow
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.make_config import SetConfig
from katgym_plugin_swe_factory.making.set_maker import CandidateSource, Note, make_set
from katgym_plugin_swe_factory.making.trial import Decision, Refused, Trial, settle

NUM_CANDIDATES = 12


class Numbers(CandidateSource[int, int]):
    """Numbers, of which the even ones make tasks; `steps_of` says how long each takes."""

    identity: Mapping[str, Any] = {"kind": "numbers"}

    def __init__(
        self,
        folder: Path,
        steps_of: Callable[[int], int] = lambda number: 0,
        *,
        num_tasks: int | None = 3,
        broken: int = -1,
    ) -> None:
        self.config = SetConfig(out=folder, num_tasks=num_tasks, num_workers=3)
        self.backend = backend("local")
        self.steps_of = steps_of
        self.broken = broken
        self.tried: list[int] = []
        self.told: list[int] = []

    async def start(self, made: MadeSet) -> None:
        self.made = made

    def candidates(self) -> Iterator[int]:
        yield from range(NUM_CANDIDATES)

    def name_of(self, candidate: int) -> str:
        return str(candidate)

    async def decide(self, candidate: int) -> Decision[int]:
        known = self.made.recall(str(candidate), Trial[int])
        if known is not None:
            return known
        self.tried.append(candidate)
        trial = await settle(self._try(candidate))
        return Decision(trial=trial, key=str(candidate), notes=({"learnt": candidate},))

    async def _try(self, candidate: int) -> int:
        for _ in range(self.steps_of(candidate)):
            await asyncio.sleep(0)
        if candidate == self.broken:
            raise InfrastructureError("no sandbox today")
        if candidate % 2:
            raise Refused("odd", "it is odd")
        return candidate

    async def finish(
        self, decisions: Sequence[tuple[int, Trial[int]]], note: Note
    ) -> Sequence[SweRow]:
        self.told = [trial.task for _, trial in decisions if trial.task is not None]
        raise Finished


class Finished(Exception):
    """The numbers make no set that can be opened."""


def play(source: Numbers) -> bytes:
    """Make the set, and return its journal."""
    with pytest.raises((Finished, InfrastructureError)):
        asyncio.run(make_set(source))
    return (source.config.out / "hidden" / "journal.jsonl").read_bytes()


SPEEDS: list[Callable[[int], int]] = [
    lambda number: 0,
    lambda number: 40 - 3 * number,  # the later, the quicker
    lambda number: 7 * number % 5,
    lambda number: 50 * (number == 0),  # all others are done while the first one runs
]


def test_speed_changes_nothing_that_is_kept(tmp_path: Path) -> None:
    made = {play(Numbers(tmp_path / str(i), speed)) for i, speed in enumerate(SPEEDS)}
    assert len(made) == 1
    lines = [json.loads(line) for line in made.pop().splitlines()]
    assert [line["learnt"] for line in lines[::2]] == [0, 1, 2, 3, 4]
    assert [line["key"] for line in lines[1::2]] == ["0", "1", "2", "3", "4"]
    outcomes = [line["trial"]["outcome"] for line in lines[1::2]]
    assert outcomes == ["valid", "odd", "valid", "odd", "valid"]


def test_a_set_that_goes_on_is_that_which_was_made_at_once(tmp_path: Path) -> None:
    at_once = play(Numbers(tmp_path / "once", num_tasks=5))
    play(Numbers(tmp_path / "twice", SPEEDS[3], num_tasks=2))
    again = Numbers(tmp_path / "twice", SPEEDS[1], num_tasks=5)
    assert play(again) == at_once
    assert again.told == [0, 2, 4, 6, 8]
    assert min(again.tried) == 3


def test_a_fault_ends_it_in_its_turn_and_the_next_run_tries_it_again(tmp_path: Path) -> None:
    at_once = play(Numbers(tmp_path / "once"))
    play(Numbers(tmp_path / "twice", SPEEDS[1], broken=3))
    lines = (tmp_path / "twice" / "hidden" / "journal.jsonl").read_text().splitlines()
    assert json.loads(lines[-1]) == {"learnt": 3}  # its trial is not known
    again = Numbers(tmp_path / "twice")
    play(again)
    keys = [json.loads(line).get("key") for line in at_once.splitlines()]
    made = (tmp_path / "twice" / "hidden" / "journal.jsonl").read_bytes()
    assert [json.loads(line).get("key") for line in made.splitlines() if b"key" in line] == [
        key for key in keys if key is not None
    ]
    assert again.told == [0, 2, 4] and min(again.tried) == 3


def test_every_candidate_is_tried_where_no_number_is_asked_for(tmp_path: Path) -> None:
    source = Numbers(tmp_path / "all", SPEEDS[2], num_tasks=None)
    play(source)
    assert source.told == [0, 2, 4, 6, 8, 10]
    assert sorted(source.tried) == list(range(NUM_CANDIDATES))
