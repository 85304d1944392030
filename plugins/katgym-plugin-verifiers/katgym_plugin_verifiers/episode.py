"""An episode of upstream's environment, which waits where its agent has to speak.

The environment runs as it is, but for its agent: that is a `PolicyAgent`, whose turns a policy
takes. All of it, with tools and scoring, is in an event loop of its own.

Not here: what a policy sees of it (`env.py`); toolsets (`toolsets.py`).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn

import verifiers
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import parse_message
from verifiers.v1.session import call_hook
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text
from verifiers.v1.utils.decorators import invoke

import katgym
from katgym.environment.messages import Message
from katgym.system.concurrency import LoopThread
from katgym_plugin_verifiers.toolsets import UpstreamTool, open_toolset


class PolicyAgent:
    """Upstream's agent, and what its interaction runs; all that is said is in the trace."""

    def __init__(self, env: vf.Env) -> None:
        self.env = copy.copy(env)  # others play with it, too
        self.env._episode_agents = self._take
        self.asked: asyncio.Queue[list[vf.Message] | None] = asyncio.Queue()  # None: no more
        self.answered: asyncio.Queue[None] = asyncio.Queue()
        self.trace: Any = None  # upstream's, once there is one
        self.tools: list[UpstreamTool] = []
        self.closed = False

    def _take(self, ctx: None, completed: list[vf.Trace], *watchers: Any) -> vf.Agents:
        self._completed = completed
        return vf.Agents(self.env.config, lambda name, config: self)

    async def run(self, task: vf.Task, **borrowed: Any) -> vf.Trace:
        """Have the policy answer a task's prompt."""
        async with self.interaction(task, **borrowed) as interaction:
            await interaction.turn()
            self.trace.stop("agent_completed")
        return self.trace

    @asynccontextmanager
    async def interaction(self, task: vf.Task, **borrowed: Any) -> AsyncIterator[vf.Interaction]:
        """Set a task up, have it played, score it."""
        if borrowed or self.trace is not None:
            raise katgym.UsageError(f"the agent plays twice, or with what is lent: {borrowed}")
        kind = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self._task, self.trace = task, vf.Trace(
            verifiers=vf.VersionInfo(version=verifiers.__version__),
            task=kind, agent=vf.AgentInfo(config=vf.AgentConfig()), state=state_cls(type(task))(),
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            await invoke(task.setup, {"trace": self.trace, "runtime": _NoRuntime()})
            toolsets = [(item, task.data) for item in task.toolsets(task.config)]
            if isinstance(task, (taskset := self.env.taskset).task_type()):
                toolsets += [(item, None) for item in taskset.toolsets(taskset.config)]
            for toolset, data in toolsets:
                self.tools += await open_toolset(toolset, self.trace, data, stack)
            interaction = vf.Interaction(self)
            yield interaction
            await interaction.close()

    @property
    def ok(self) -> bool:
        """Whether the conversation may go on."""
        return self.trace.stop_condition is None

    async def step(self, messages: list[vf.Message] | None, **watchers: Any) -> None:
        """Have the policy answer a user's messages, or the task's prompt."""
        data = self._task.data
        said = _as_typed(data.prompt) if messages is None else messages
        if not self.trace.nodes and data.system_prompt is not None:
            said = [vf.SystemMessage(content=data.system_prompt), *said]
        if self.ok and not await self.note(said, is_prompt=True):
            self.asked.put_nowait(said)
            await self.answered.get()

    async def close(self) -> vf.Trace:
        """Finish and score, once."""
        if not self.closed:
            self.closed = True
            await invoke(self._task.finalize, {"trace": self.trace, "runtime": _NoRuntime()})
            await self._task.score(self.trace, _NoRuntime())
            self.trace.ok = True
            self._completed.append(self.trace)
        return self.trace

    async def note(self, messages: Sequence[Any], *, is_prompt: bool = False) -> str:
        """Add messages to the trace; return the stop that follows, or ""."""
        nodes = self.trace.nodes
        for message in _as_typed(messages):
            is_sampled = message.role == "assistant" and not is_prompt
            parent = len(nodes) - 1 if nodes else None
            nodes.append(vf.MessageNode(parent=parent, message=message, sampled=is_sampled))
        for fn in self._task.hooks("stop"):
            if self.ok and await call_hook(fn, {vf.Trace: self.trace}):
                self.trace.stop(fn.__name__)
        return self.trace.stop_condition or ""


class Episode(LoopThread):
    """One task, played by upstream's environment with a `PolicyAgent`; `run` the coroutines."""

    def __init__(self, env: vf.Env, *, timeout_s: float) -> None:
        super().__init__("the environment", timeout_s=timeout_s)
        self.agent = PolicyAgent(env)

    async def start(self, task: vf.Task) -> list[Message]:
        """Return the first messages to the agent."""
        self._running = asyncio.create_task(self.agent.env.run_episode(task, None))
        self._running.add_done_callback(lambda _: self.agent.asked.put_nowait(None))
        if (first := await self._next()) is None:
            text = f"the environment does not start: {_text(self._running.result())}"
            raise katgym.InfrastructureError(text)
        return first

    async def answer(self, *said: Message) -> list[Message] | None:
        """End the agent's turn; return the next messages to it, None if there are none."""
        await self.agent.note(said)
        self.agent.answered.put_nowait(None)
        return await self._next()

    async def finish(self) -> vf.Trace:
        """End the episode if it is not over, as a limit does; return its scored trace.

        Raises `ScoringFailure` for whatever upstream's code has raised.
        """
        if not self._running.done():
            self.agent.trace.stop("max_turns")
            await self.answer()
        result = await self._running
        if result.errors or not result.traces:
            raise katgym.ScoringFailure(_text(result), kind="scorer_error")
        return result.traces[0]

    async def _next(self) -> list[Message] | None:
        asked = await self.agent.asked.get()
        return None if asked is None else [_as_message(message) for message in asked]


class _NoRuntime:
    """Upstream's box for commands and files, which is not there."""

    def __getattr__(self, name: str) -> NoReturn:
        raise katgym.UsageError(f"the task uses its container (runtime.{name}): there is none")


def _text(episode: vf.Episode) -> str:
    return "; ".join(f"{e.type}: {e.message}" for e in episode.errors) or "it has no agent play"


def _as_typed(said: str | Sequence[Any]) -> list[vf.Message]:
    if isinstance(said, str):
        return [vf.UserMessage(content=said)]
    return [parse_message(item) if isinstance(item, dict) else item for item in said]


def _as_message(message: vf.Message) -> Message:
    parts = message.content if isinstance(message.content, list) else []
    has_calls = message.role == "tool" or getattr(message, "tool_calls", None)
    if has_calls or any(part.type != "text" for part in parts):
        text = "the environment shows an image or calls of tools; texts are played"
        raise katgym.InfrastructureError(text)
    return {"role": message.role, "content": content_text(message.content)}
