"""An env that is played on a server of the Open Reward Standard.

    katgym.make("ors/Server-v0", url="http://localhost:8080")

The server's tasks, prompt and tools are the env's; the rewards of an episode's calls add up.

Not here: the connection (`connection.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Message
from katgym.environment.remote_env import RemoteEnv
from katgym.environment.task import ProceduralTaskSet
from katgym.system.concurrency import in_thread
from katgym_plugin_ors.connection import OrsConnection


class OrsServer(RemoteEnv):
    """Episodes on an ORS server: a task is an index of one of its splits."""

    is_deterministic: ClassVar[bool] = False
    default_max_turns: ClassVar[int] = 16

    def __init__(
        self, *, url: str = "", name: str = "", timeout_s: float = 60.0, **kwargs: Any
    ) -> None:
        """Prepare an env; nothing is reached before `reset`.

        url: of the server, `http://HOST:PORT`. name: of the environment there; "" is the first.
        timeout_s: wall seconds for a call, and for a session to be ready.
        """
        super().__init__(**kwargs)
        self.url, self.name, self.timeout_s = url, name, timeout_s
        self._session: OrsConnection | None = None

    def load_tasks(self, split: str) -> katgym.TaskSet:
        """Ask the server for the tasks of its split of that name, or else of that kind."""
        server = self._connect()
        try:
            splits = server.ask("{env}/splits")
            names = [item["name"] for item in splits if item["name"] == split]
            names += [item["name"] for item in splits if item.get("type") == split]
            if not names:
                listed = [item["name"] for item in splits]
                raise katgym.UsageError(f"{self.url!r} has no split {split!r}; it has {listed}")
            size = int(server.ask("{env}/num_tasks", {"split": names[0]})["num_tasks"])
        except (LookupError, TypeError, AttributeError) as e:
            raise server.broken(f"tells no splits: {e!r}") from e
        finally:
            server.close()
        data = {"env": server.name, "split": names[0]}
        return ProceduralTaskSet(
            lambda rng, index: katgym.Task(task_id="", data={**data, "index": index}),
            size=size,
            split=split,
        )

    async def setup(self) -> None:
        """Open a session; its tools are the episode's."""
        self._rewards: list[float] = []
        self._session = session = self._connect()
        data = self.task.data
        await in_thread(lambda: session.open(data["split"], data["index"]))
        blocks = await in_thread(lambda: session.ask("{env}/prompt"))
        listed = await in_thread(lambda: session.ask("{env}/task_tools"))
        try:
            self._prompt = _text(blocks)
            self._terminal = listed.get("terminal_tool")
            self.tools = katgym.tools_by_name(
                katgym.Tool.from_schema(
                    {**spec, "input_schema": spec.get("input_schema") or {"type": "object"}},
                    partial(self._call, spec["name"]),
                    timeout_s=2 * self.timeout_s,
                )
                for spec in listed["tools"]
            )
        except (katgym.UsageError, LookupError, TypeError, AttributeError) as e:
            raise session.broken(f"has tools that are none: {e!r}") from e

    def opening(self) -> str:
        """Return the server's prompt."""
        return self._prompt

    async def reply(self, message: Message) -> str | None:
        """End the episode; a server that takes a last message is given it."""
        if self._terminal:
            field = self._terminal.get("arg")
            said = {} if field is None else {field: message["content"]}
            try:
                await self._call(self._terminal["name"], **said)
            except katgym.ToolError as e:
                return str(e)
        return None

    @katgym.scorer()
    def total_reward(self) -> float:
        """Return the sum of the rewards of the episode's calls."""
        return math.fsum(self._rewards)

    async def teardown(self) -> None:
        """End the session."""
        if self._session is not None:
            session, self._session = self._session, None
            await in_thread(session.close)

    def _connect(self) -> OrsConnection:
        if not self.url:
            raise katgym.UsageError("ors/Server-v0 needs a server: url=http://HOST:PORT")
        return OrsConnection(self.url, name=self.name, timeout_s=self.timeout_s)

    async def _call(self, name: str, /, **arguments: Any) -> str:
        session = self._session
        if self._is_terminated or session is None:
            raise katgym.ToolError("the episode has ended")
        output = await in_thread(lambda: session.call(name, arguments))
        reward = output.get("reward")
        if not isinstance(reward, int | float | None) or not math.isfinite(reward or 0.0):
            raise session.broken(f"gives no number as a reward: {reward!r}")
        self._rewards.append(float(reward or 0.0))
        if output.get("finished"):
            self.finish("finished")
        try:
            return _text(output["blocks"])
        except (LookupError, TypeError, AttributeError) as e:
            raise session.broken(f"gives no blocks of text: {e!r}") from e


def _text(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return blocks as text; images are named."""
    return "\n".join(
        block["text"]
        if "text" in block
        else f"[{block.get('mimeType', json.dumps(block)[:40])}, not shown]"
        for block in blocks
    )
