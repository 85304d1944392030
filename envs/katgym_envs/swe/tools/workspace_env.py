"""The base of envs that are played with tools in a sandbox of the episode's own.

Not here: the tools, which are mixed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Message
from katgym.sandbox import Sandbox, SandboxSpec, shared_backend
from katgym_envs.swe.tools.open_workspace import OpenWorkspace


class WorkspaceEnv(katgym.Env):
    """An env whose `setup` opens a workspace, which the tools then work in.

    A message without a tool call is answered with `nudge`; a second in a row ends the episode.
    """

    is_deterministic: ClassVar[bool] = False
    nudge: ClassVar[str] = (
        "That message called no tool. Work with the tools; when you are done, call submit."
    )

    def __init__(self, *, sandbox: str = "local", **kwargs: Any) -> None:
        """Prepare an env; sandbox: name of the backend, see `katgym sandbox list`."""
        super().__init__(**kwargs)
        self.sandbox_name = sandbox
        self._sandbox: Sandbox | None = None
        self._num_idle = 0

    async def open_workspace(self, spec: SandboxSpec) -> Sandbox:
        """Make the episode's sandbox, which ends with it."""
        self._num_idle = 0
        self._sandbox = await shared_backend(self.sandbox_name).create(spec)
        self.workspace = OpenWorkspace(sandbox=self._sandbox)
        return self._sandbox

    async def teardown(self) -> None:
        """End the sandbox with everything in it."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()

    async def after_tools(self, results: Sequence[katgym.ToolResult]) -> Sequence[Message]:
        """Forget the messages without a tool call."""
        self._num_idle = 0
        return ()

    async def reply(self, message: Message) -> str | None:
        """Ask for a tool call, once."""
        self._num_idle += 1
        return self.nudge if self._num_idle == 1 else None
