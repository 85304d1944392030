"""Rollouts of a plan reach their sink; a sink that fails stops the playing at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from katgym import InfrastructureError, Rollout
from katgym.evaluation.plan import EvalConfig, Plan, rollout_key
from katgym.evaluation.playing import play_missing
from katgym.policies.uri import policy

CONFIG = EvalConfig(
    envs=("katgym/Arithmetic-v1?level=1",), policy="oracle", num_tasks=40, max_concurrency=2
)


class Sink:
    """Keeps rollouts; raises `error` at write number `failing`."""

    def __init__(self, *, failing: int = 10**9, error: Exception | None = None) -> None:
        self.failing = failing
        self.error = error or InfrastructureError("the disk is full")
        self.done: set[str] = set()
        self.rollouts: list[Rollout] = []
        self.num_writes = 0

    def append(self, rollouts: Sequence[Rollout]) -> None:
        self.num_writes += 1
        if self.num_writes >= self.failing:
            raise self.error
        self.rollouts += rollouts


def play(sink: Sink) -> list[str]:
    """Play, and return the keys that were notified of."""
    told: list[str] = []

    def notify(rollout: Rollout) -> None:
        told.append(rollout_key(rollout.env_id, rollout.task_id, rollout.attempt))

    asyncio.run(play_missing(Plan.of(CONFIG), policy("oracle"), sink, notify))
    return told


def test_what_is_missing_is_played_and_told_once_it_is_written() -> None:
    sink = Sink()
    keys = [request.key for request in Plan.of(CONFIG).requests()]
    sink.done = set(keys[::2])
    told = play(sink)
    assert sorted(told) == sorted(keys[1::2])
    assert len(sink.rollouts) == 20


@pytest.mark.parametrize("error", [InfrastructureError("the disk is full"), TypeError("no JSON")])
def test_a_write_that_fails_stops_the_playing_with_its_reason(error: Exception) -> None:
    sink = Sink(failing=2, error=error)
    with pytest.raises(type(error), match=str(error)):
        play(sink)
    assert sink.num_writes == 2
    assert len(sink.rollouts) < 40


def test_nothing_is_written_when_nothing_is_missing() -> None:
    sink = Sink()
    sink.done = {request.key for request in Plan.of(CONFIG).requests()}
    assert play(sink) == []
    assert sink.num_writes == 0
