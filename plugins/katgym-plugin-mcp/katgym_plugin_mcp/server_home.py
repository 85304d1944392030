"""The command of a server that is started here, and what each start has of its own.

The server runs as the user does: it is kept apart from other episodes by a working folder and by
its variables, not from the machine.

Not here: talking to it (`connection.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters, stdio_client

import katgym
from katgym.vllm_server import process_guard

STOP_TIMEOUT_S = 1.0
"""Wall seconds between asking a server's process to end and killing it and what it started."""
NUM_LOG_CHARS = 600


def parse_server(server: Sequence[str] | str) -> tuple[str, ...] | str:
    """Return a server's URL, or its command as words; raise `UsageError` where there is none.

    server: a URL, a command line or its words. A program named with a slash, and arguments that
        are files here, become absolute: the server starts in another folder.
    """
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        return server
    try:
        words = shlex.split(server) if isinstance(server, str) else [str(word) for word in server]
    except ValueError as e:
        raise katgym.UsageError(f"server {server!r} is no command line: {e}") from e
    if not words:
        raise katgym.UsageError("server is a URL or a command line, got nothing")
    program = shutil.which(words[0])
    if program is None:
        raise katgym.UsageError(f"server {server!r}: there is no program {words[0]!r}")
    arguments = [str(Path(word).absolute()) if Path(word).is_file() else word for word in words[1:]]
    return (str(Path(program).absolute()), *arguments)


class ServerHome:
    """The folders of one server: `work`, where it starts, and `tmp`; `log` is what it logs."""

    def __init__(
        self, command: Sequence[str], *, files: Path | None, variables: Sequence[str]
    ) -> None:
        """Make the folders; nothing is started yet.

        command: absolute, see `parse_server`. files: a folder whose content is copied into `work`.
        variables: names of those that it inherits, beside what the SDK passes on (PATH and names
            of user, shell and terminal).
        """
        self._command, self._variables = command, variables
        self.folder = Path(tempfile.mkdtemp(prefix="katgym-mcp-"))
        self.work, self.tmp, self.log = (self.folder / name for name in ("work", "tmp", "log"))
        self.tmp.mkdir()
        if files is None:
            self.work.mkdir()
        else:
            shutil.copytree(files, self.work, symlinks=True)

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the server, under a guard that ends it when this process is gone; yield the
        streams of its messages for the SDK's client."""
        own = {"HOME": str(self.work), "TMPDIR": str(self.tmp)}
        guard = ["-I", process_guard.__file__, "--streams", str(STOP_TIMEOUT_S)]
        parameters = StdioServerParameters(
            command=sys.executable,
            args=[*guard, *self._command],
            env={**own, **{name: os.environ[name] for name in self._variables}},
            cwd=self.work,
            encoding_error_handler="replace",
        )
        with self.log.open("w") as log:
            async with stdio_client(parameters, errlog=log) as streams:
                yield streams

    def log_tail(self) -> str:
        """Return the end of what the server logged; "" when the folders are gone."""
        if not self.log.exists():
            return ""
        return self.log.read_text(errors="replace").strip()[-NUM_LOG_CHARS:]

    def remove(self) -> None:
        """Remove the folders."""
        shutil.rmtree(self.folder, ignore_errors=True)
