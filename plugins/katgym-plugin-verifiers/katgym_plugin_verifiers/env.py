"""An env whose tasks, tools, turns and rewards are those of a taskset of verifiers' v1.

    katgym.make("verifiers/Env-v0", taskset="gsm8k_v1", config={"split": "train"})

Not here: the tasks (`tasks.py`); the episode (`episode.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Message
from katgym.environment.remote_env import RemoteEnv
from katgym_plugin_verifiers.episode import Episode
from katgym_plugin_verifiers.tasks import VerifiersTasks, is_held_out, load
from katgym_plugin_verifiers.toolsets import UpstreamCall


class VerifiersEnv(RemoteEnv):
    """Episodes of a taskset, in upstream's environment for it."""

    splits = ("train", "test")
    is_deterministic: ClassVar[bool] = False
    default_max_turns: ClassVar[int] = 16

    def __init__(
        self,
        *,
        taskset: str = "",
        config: Mapping[str, Any] | None = None,
        test: Mapping[str, Any] | None = None,
        num_tasks: int = 0,
        threshold: float = 1.0,
        timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        """Prepare an env; nothing is imported before the tasks are asked for.

        taskset: an importable module that exports a `Taskset`. config: fields of its config.
        test: fields that differ for the split `test`; without them it is a fifth of the tasks.
        num_tasks: how many of the taskset's tasks, from the first; 0 for all.
        threshold: least reward that is a success. timeout_s: wall seconds for what the environment
            does between two messages, with its scoring; half of them for a call.
        """
        super().__init__(**kwargs)
        self.taskset, self.config, self.test = taskset, dict(config or {}), test
        self.num_tasks, self.timeout_s = num_tasks, timeout_s
        self.success = katgym.Success(threshold=threshold)

    def load_tasks(self, split: str) -> VerifiersTasks:
        """Load the taskset; a split is all of it with `test`, else a share by a hash."""
        is_test = split == "test"
        config = {**self.config, **(self.test or {})} if is_test else self.config
        env, tasks = load(self.taskset, config, self.num_tasks)
        if self.test is None:
            tasks = [task for task in tasks if is_held_out(task) == is_test]
        return VerifiersTasks(env, tasks, split=split)

    async def setup(self) -> None:
        """Start upstream's episode; its tools are there when its agent has to speak."""
        tasks = self.tasks(self.task.split)
        assert isinstance(tasks, VerifiersTasks)
        self._episode = episode = Episode(tasks.env, timeout_s=self.timeout_s)
        self._first = await episode.run(episode.start(tasks.upstream[self.task.task_id]))
        self.tools = katgym.tools_by_name(
            katgym.Tool.from_schema(spec, partial(self._call, call), timeout_s=self.timeout_s / 2)
            for spec, call in episode.agent.tools
        )

    def opening(self) -> Sequence[Message]:
        """Return the task's prompt."""
        return self._first

    async def after_tools(self, results: Sequence[katgym.ToolResult]) -> Sequence[Message]:
        """Have the task's stops look at what was done."""
        done = [self.messages[-1], *(result.to_message() for result in results)]
        if reason := await self._episode.run(self._episode.agent.note(done)):
            self.finish(reason)
        return ()

    async def reply(self, message: Message) -> Sequence[Message] | None:
        """Return what the environment says next; a task without a user ends with the answer."""
        return await self._episode.run(self._episode.answer(message))

    @katgym.scorer()
    async def total_reward(self) -> float:
        """Return the weighted sum of the task's rewards; artifacts hold them and its metrics."""
        trace = await self._episode.run(self._episode.finish())
        told = trace.model_dump(mode="json", include={"rewards", "metrics"})
        self.artifacts["verifiers"] = told
        return float(trace.reward)

    async def teardown(self) -> None:
        """End the episode, wherever it is."""
        self._episode.close()

    async def _call(self, call: UpstreamCall, /, **arguments: Any) -> str:
        return await self._episode.run(call(arguments))
