"""Thousands of rollouts and tool calls in one process, with every result right."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from waiting import wait_until

import katgym
from katgym.environment.env import Env
from katgym.environment.messages import Message, assistant
from katgym.environment.scheduler import SchedulerConfig, run_calls
from katgym.environment.task import ProceduralTaskSet, Task
from katgym.environment.tool import Tool, ToolOptions, tool
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.policies.base import Completion, EpisodeContext, Policy, Session

PATIENT = SchedulerConfig(tool_timeout_s=3600.0, turn_timeout_s=3600.0)


class Sums(Env):
    """Give the sum of what eight parallel `digit` calls and a serial `offset` call return."""

    default_max_turns = 3

    def load_tasks(self, split: str) -> ProceduralTaskSet:
        return ProceduralTaskSet(
            lambda rng, index: Task(task_id="", data={"digits": rng.integers(10, size=8).tolist()}),
            size=10**6,
            split=split,
        )

    def opening(self) -> str:
        self.calls_seen = 0
        return "Add up."

    @tool(parallel=True)
    async def digit(self, place: int) -> int:
        await asyncio.sleep(0.001 * (place % 3))
        return int(self.task.data["digits"][place])

    @tool
    async def offset(self) -> int:
        self.calls_seen += 1
        return self.calls_seen

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == str(sum(self.task.data["digits"]) + 1)


class Adder(Policy):
    """Calls every tool in one turn, adds up, and answers; 50 ms a turn."""

    name = "adder"

    def start(self, context: EpisodeContext) -> Session:
        return AdderSession()


class AdderSession(Session):
    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        await asyncio.sleep(0.05)
        results = [m["content"] for m in messages if m["role"] == "tool"]
        if results:
            return Completion(message=assistant(str(sum(map(int, results)))))
        calls = [("digit", {"place": place}) for place in range(8)]
        return Completion(message=assistant("", [*calls, ("offset", {})]))


@pytest.mark.slow
def test_2048_concurrent_rollouts_are_all_right() -> None:
    async def go() -> tuple[int, int, set[str]]:
        engine = RolloutEngine(Adder(), config=EngineConfig(max_concurrency=2048))
        template = Sums(scheduler=PATIENT)
        wanted = (RolloutRequest(env=template, seed=seed) for seed in range(2048))
        right, parallel, tasks = 0, 0, set()
        async for _, rollout in engine.run(wanted):
            right += rollout.reward.value == 1.0
            parallel += rollout.num_parallel_calls == 8 and rollout.num_tool_calls == 9
            tasks.add(rollout.task_id)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return right, parallel, tasks

    right, parallel, tasks = asyncio.run(go())
    assert (right, parallel) == (2048, 2048)
    assert len(tasks) > 2000


def test_five_hundred_sync_calls_from_many_turns_at_once() -> None:
    def square(x: int) -> int:
        time.sleep(0.001)
        return x * x

    tools = {"square": Tool.from_function(square, ToolOptions(parallel=True))}

    async def turn(number: int) -> list[str]:
        calls = assistant("", [("square", {"x": number * 10 + i}) for i in range(10)])
        results = await run_calls(tools, calls["tool_calls"], PATIENT)
        return [result.content for result in results]

    async def go() -> list[list[str]]:
        return await asyncio.gather(*(turn(number) for number in range(50)))

    found = asyncio.run(go())
    assert found == [[str((n * 10 + i) ** 2) for i in range(10)] for n in range(50)]
    wait_until(
        lambda: not any(t.name.startswith("katgym-tool-") for t in threading.enumerate()),
        "the threads of the tools to end",
    )
