"""Envs as plain data, and those that only their own process has."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import katgym
from katgym.errors import UsageError
from katgym.play.engine import RolloutEngine, RolloutRequest
from katgym.plugins.env_ref import EnvRef
from katgym.testing import EchoEnv

HUNT = "katgym/TreasureHunt-v1"


def test_a_reference_makes_the_env_again_also_after_it_travelled() -> None:
    ref = EnvRef.of(katgym.make(HUNT, level=3, max_turns=5).clone())
    assert ref == EnvRef(env_id=HUNT, kwargs={"level": 3, "max_turns": 5})
    env = pickle.loads(pickle.dumps(ref)).make()
    assert (env.max_turns, env.init_kwargs["level"]) == (5, 3)


def test_a_request_of_a_reference_plays_what_one_of_the_env_plays() -> None:
    env = katgym.make(HUNT, level=2)
    engine = RolloutEngine(katgym.policy("random"))

    async def play() -> list[list[str]]:
        texts = []
        for told in (env, EnvRef.of(env)):
            requests = [RolloutRequest(env=told, seed=7, attempt=attempt) for attempt in range(3)]
            rollouts = await engine.play_group(requests)
            assert [rollout.attempt for rollout in rollouts] == [0, 1, 2]
            texts.append([str(rollout.messages) for rollout in rollouts])
        return texts

    here, made = asyncio.run(play())
    assert here == made and len(set(here)) > 1


def test_what_only_this_process_has_does_not_travel() -> None:
    with pytest.raises(UsageError, match=r"EchoEnv was made by hand, .* or play without workers"):
        EnvRef.of(EchoEnv())
    katgym.register("mine/Echo-v0", EchoEnv, should_replace=True)
    with pytest.raises(UsageError, match="'mine/Echo-v0' was registered by a script"):
        EnvRef.of(katgym.make("mine/Echo-v0"))
    env = katgym.make(HUNT, scheduler=katgym.SchedulerConfig())
    with pytest.raises(UsageError, match=f"{HUNT!r} has an argument that cannot be sent"):
        EnvRef.of(env)
