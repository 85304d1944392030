"""The same seed gives the same episode in any thread, task or process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import katgym
from katgym.environment.env import Env
from katgym.environment.messages import Action, Message, assistant
from katgym.environment.task import ProceduralTaskSet, Task
from katgym.environment.tool import tool
from katgym.testing import EchoEnv

ROOT = Path(__file__).resolve().parents[3]


class Dice(Env):
    """Draws in every hook, and lets other episodes in between."""

    default_max_turns = 6

    def load_tasks(self, split: str) -> ProceduralTaskSet:
        return ProceduralTaskSet(
            lambda rng, index: Task(task_id="", prompt=str(rng.random())), size=10**6, split=split
        )

    async def setup(self) -> None:
        await asyncio.sleep(0)
        self.start = int(self.np_random.integers(10**9))

    def opening(self) -> str:
        return f"{self.task.prompt} {self.start} {self.np_random.random()}"

    async def reply(self, message: Message) -> str:
        await asyncio.sleep(0)
        return str(self.np_random.random())

    @tool
    def roll(self, sides: int) -> int:
        return int(self.np_random.integers(sides))

    @katgym.scorer()
    def luck(self) -> float:
        return float(self.np_random.random())


ACTIONS: list[Action] = ["a", assistant("", [("roll", {"sides": 10**9})] * 3), "b", "c", "d", "e"]


async def episode(seed: int | None) -> str:
    env = Dice()
    record: list[Any] = [await env.areset(seed=seed)]
    for action in ACTIONS:
        record.append(await env.astep(action))
    return json.dumps(record)


@pytest.fixture
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switch_often")
def test_same_seed_same_episode_in_64_threads() -> None:
    expected = [asyncio.run(episode(seed)) for seed in range(4)]
    seeds = [index % 4 for index in range(64)]
    with ThreadPoolExecutor(max_workers=64) as pool:
        found = list(pool.map(lambda seed: asyncio.run(episode(seed)), seeds))
    assert found == [expected[seed] for seed in seeds]
    assert len(set(expected)) == 4


def test_same_seed_same_episode_among_100_interleaved() -> None:
    async def go() -> list[str]:
        return await asyncio.gather(*(episode(index % 5) for index in range(100)))

    found = asyncio.run(go())
    assert found == [asyncio.run(episode(index % 5)) for index in range(5)] * 20


@pytest.mark.slow
def test_same_seed_same_episode_in_other_processes() -> None:
    source = (
        "import json, katgym\n"
        "env = katgym.testing.EchoEnv()\n"
        "print(json.dumps([[env.reset(seed=s), env.np_random.random()] for s in range(5)]))"
    )
    paths = [ROOT / part for part in ("", "envs", "trainer", "kernels")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", source],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "PYTHONHASHSEED": str(number),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    printed = [json.loads(process.communicate(timeout=300)[0]) for process in started]
    env = EchoEnv()
    expected = [[list(env.reset(seed=s)), env.np_random.random()] for s in range(5)]
    assert printed == [expected] * 4


def test_seeds_differ_and_no_seed_draws_afresh() -> None:
    assert len({asyncio.run(episode(seed)) for seed in range(50)}) == 50
    assert len({asyncio.run(episode(None)) for _ in range(10)}) == 10


def test_reset_without_a_seed_goes_on_with_the_seeded_stream() -> None:
    def two_episodes() -> list[Any]:
        env = Dice()
        return [env.reset(seed=3), env.reset(), env.reset()]

    first = two_episodes()
    assert first == two_episodes()
    assert first[0] != first[1] != first[2]


def test_global_generators_are_untouched_and_change_no_episode() -> None:
    before = (random.getstate(), repr(np.random.get_state()))
    expected = asyncio.run(episode(1))
    asyncio.run(episode(None))
    env = EchoEnv()
    env.action_space.seed(0)
    env.action_space.sample()
    env.random_action(random.Random(0))
    assert (random.getstate(), repr(np.random.get_state())) == before
    random.seed(1)
    np.random.seed(1)
    assert asyncio.run(episode(1)) == expected
