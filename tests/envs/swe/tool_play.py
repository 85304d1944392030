"""The tools of `katgym/SWE-v0` on workspaces of a test's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

from katgym.environment.messages import assistant
from katgym.environment.scheduler import SchedulerConfig, run_calls
from katgym.sandbox import SandboxSpec, layer_store, shared_backend
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.env import SweEnv
from katgym_envs.swe.tools.open_workspace import OpenWorkspace

Files = Mapping[str, bytes | FileEntry]
kind = "local"
"""Backend of the workspaces that `with_tools` makes."""


class Tools:
    """Calls the env's tools as an agent's message would."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self.workspace = workspace
        self.env = SweEnv(tasks="toy")
        self.env.workspace = workspace
        self.env.visible_tests = ("test_a.py",)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        calls = assistant("", [(name, arguments)])["tool_calls"]
        config = SchedulerConfig(max_output_bytes=1 << 20)
        (result,) = await run_calls(self.env.class_tools, calls, config, owner=self.env)
        return result.content, result.error is not None

    async def __call__(self, name: str, /, **arguments: Any) -> str:
        content, is_error = await self._call(name, arguments)
        assert not is_error, content
        return content

    async def refused(self, name: str, /, **arguments: Any) -> str:
        content, is_error = await self._call(name, arguments)
        assert is_error, content
        return content

    async def content(self, path: str) -> bytes:
        return await self.workspace.sandbox.read(path)

    async def shell(self, command: str) -> str:
        """Run a command without the tools."""
        return (await self.workspace.sandbox.exec(command)).text()


def with_tools(files: Files, test: Callable[[Tools], Any], **spec: Any) -> None:
    """Play a test with a workspace that holds files."""

    async def go() -> None:
        image = os.environ["KATGYM_DOCKER_IMAGE"] if kind == "docker" else None
        made = SandboxSpec(layers=(layer_store().add_files(files),), image=image, **spec)
        async with await shared_backend(kind).create(made) as sandbox:
            await test(Tools(OpenWorkspace(sandbox=sandbox)))

    asyncio.run(go())
