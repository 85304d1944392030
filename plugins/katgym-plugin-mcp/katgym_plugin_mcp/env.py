"""The base of envs whose tools are those of an MCP server.

    class Search(McpEnv):
        server = ["npx", "-y", "@acme/search-server"]

        def load_tasks(self, split): ...

        @katgym.scorer()
        def correct(self): ...

Not here: the connection (`connection.py`); an env made from a file of questions (`questions.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

import katgym
from katgym.environment.remote_env import RemoteEnv
from katgym_plugin_mcp.connection import McpServer


class McpEnv(RemoteEnv):
    """An env whose episodes have a connection each to an MCP server, and the server's tools.

    A server that is started gets a process and a working folder for each episode, which end with
    it. One that is reached by URL is shared: what an episode changes there, others see. A task with
    a server of its own assigns `self.server` in `setup`, before `await super().setup()`.
    """

    server: Sequence[str] | str = ()
    """The server's command line, its words, or its URL."""
    files: Path | str | None = None
    """A folder whose content each episode's server finds in its working folder."""
    variables: Sequence[str] = ()
    """Names of the environment variables that the server inherits."""
    sandbox: str = ""
    """Backend of the sandbox that a server's command runs in; without, it runs as the user does."""
    parallel: bool | Collection[str] = False
    """Whether calls may overlap, or the names (the server's) of the tools whose calls may."""
    timeout_s: float = 60.0
    """Wall seconds for one call."""

    is_deterministic: ClassVar[bool] = False

    connection: McpServer | None = None

    async def setup(self) -> None:
        """Start or reach the server; its tools are the episode's, beside the env's own."""
        self.connection = McpServer(
            self.server,
            variables=self.variables,
            sandbox=self.sandbox,
            timeout_s=self.timeout_s,
        )
        await self.connection.open(None if self.files is None else Path(self.files))
        made = self.connection.tools(self.parallel)
        self.tools = katgym.tools_by_name([*self.class_tools.values(), *made])

    async def teardown(self) -> None:
        """End the connection, and the server with it."""
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    def tool_name(self, source_name: str) -> str:
        """Return what policies call the tool that the server calls `source_name`."""
        names = {tool.source_name: tool.name for tool in self.tools.values()}
        return names[katgym.errors.check_name("tool of the server", source_name, names)]
