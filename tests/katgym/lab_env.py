"""An env that notes its hooks, for the tests of the env contract."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import katgym
from katgym.environment.env import Env
from katgym.environment.messages import Message, user
from katgym.environment.scheduler import ToolResult
from katgym.environment.task import Task
from katgym.environment.tool import tool


class Lab(Env):
    """Notes every hook; what it does can be set per instance."""

    system_prompt = "Be brief."
    splits = ("train", "test")

    def __init__(self, *, fail_in: str = "", label: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail_in = fail_in
        self.label = label
        self.log: list[str] = []
        self.num_loads = 0

    def load_tasks(self, split: str) -> Sequence[Task]:
        self.num_loads += 1
        return [Task(task_id=f"{split}-{i}", prompt=f"p{i}", answer=str(i)) for i in range(10)]

    def _note(self, hook: str) -> None:
        self.log.append(hook)
        if self.fail_in == hook:
            raise RuntimeError(f"{hook} broke")

    async def setup(self) -> None:
        self._note("setup")

    def opening(self) -> str:
        self._note("opening")
        return self.task.prompt

    async def reply(self, message: Message) -> str | None:
        await asyncio.sleep(0)
        self._note("reply")
        return None if message["content"] == self.task.answer else "No."

    async def after_tools(self, results: Sequence[ToolResult]) -> Sequence[Message]:
        return [user(f"{len(results)} results")] if self.label == "talkative" else ()

    async def teardown(self) -> None:
        self._note("teardown")

    @tool
    def stop(self, reason: str) -> str:
        """Stop."""
        self.finish(reason)
        return "stopped"

    @tool(parallel=True)
    async def look(self) -> str:
        """Look."""
        return "seen"

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == str(self.task.answer)
