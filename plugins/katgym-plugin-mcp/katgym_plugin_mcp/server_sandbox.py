"""A server that runs in a sandbox: what it finds there, and its streams.

A sandbox runs commands to their end and has no open pipes, so the server reads and writes two
named pipes inside of it, and a short command carries each message: about 20 ms a call.

Not here: a server that runs as the user does (`server_home.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

import katgym
from katgym.sandbox import (
    Sandbox,
    SandboxError,
    SandboxLimits,
    SandboxSpec,
    layer_store,
    shared_backend,
)
from katgym.sandbox.layer import FileEntry
from katgym.system.sync import run_sync
from katgym_plugin_mcp.server_home import NUM_LOG_CHARS, STOP_TIMEOUT_S

LIMITS = SandboxLimits(wall_s=None)
"""An episode's own limits end it; the others are those of any sandbox."""
MAX_LINE_BYTES = 16 << 20
"""Of one message; a server that writes a longer line is ended."""
_TTL_S = 24 * 3600.0
_WORKDIR = "/workspace"
_IN, _OUT = "/tmp/mcp-in", "/tmp/mcp-out"
# Open for both, so that neither waits for the other side, and none ends when a carrier does.
_START = f'exec "$@" 0<>{_IN} 1<>{_OUT}'
_READ = f"dd bs=1M count=1 status=none <{_OUT}"
"""Waits for output, and prints what there is; nothing once nobody can write any more."""
_Message = SessionMessage | Exception
_Streams = tuple[MemoryObjectReceiveStream[_Message], MemoryObjectSendStream[SessionMessage]]


class ServerSandbox:
    """The sandbox of one server."""

    def __init__(self, sandbox: Sandbox, argv: Sequence[str]) -> None:
        self._sandbox = sandbox
        self._argv = argv
        self._log = ""

    @classmethod
    async def open(
        cls, name: str, command: Sequence[str], *, files: Path | None, variables: Sequence[str]
    ) -> ServerSandbox:
        """Make a sandbox that holds a server; nothing of the server is started yet.

        name: of the backend. command: absolute, see `parse_server`; files that it names are copied
            into the workspace, but for those that the sandbox shows at their place.
        files: a folder whose content is copied there, too. variables: names of those it inherits.
        """
        backend = shared_backend(name)
        if "python" not in (await backend.enforcement()).capabilities:
            raise katgym.UsageError(
                f"sandbox {name!r} shows nothing of this machine's programs, so it cannot hold the"
                " server; 'local' can"
            )
        spec, argv = await asyncio.to_thread(_prepare, command, files, variables)
        return cls(await backend.create(spec), argv)

    def log_tail(self) -> str:
        """Return the end of what the server logged and why it ended; "" before its end."""
        return self._log

    def remove(self) -> None:
        """End the sandbox with everything in it."""
        with suppress(SandboxError):
            run_sync(self._sandbox.kill())

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[_Streams]:
        """Start the server, and yield the streams of its messages for the SDK's client."""
        await self._sandbox.exec(["mkfifo", "-m", "600", _IN, _OUT])
        from_server, read = anyio.create_memory_object_stream[_Message](0)
        write, to_server = anyio.create_memory_object_stream[SessionMessage](0)
        async with read, write, anyio.create_task_group() as tasks:
            tasks.start_soon(self._live, from_server, to_server)
            yield read, write
            tasks.cancel_scope.cancel()

    async def _live(
        self,
        from_server: MemoryObjectSendStream[_Message],
        to_server: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        """Run the server; the client sees the end of the streams when it has ended."""

        async def send() -> None:
            async for message in to_server:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                await self._sandbox.exec(f"cat >{_IN}", stdin=line.encode())

        try:
            async with from_server, to_server, anyio.create_task_group() as tasks:
                drained = anyio.Event()
                tasks.start_soon(send)
                tasks.start_soon(self._receive, from_server, drained, tasks.cancel_scope)
                result = await self._sandbox.exec(["/bin/bash", "-c", _START, "sh", *self._argv])
                limit = f"\nit reached its limit {result.limit_hit}" if result.limit_hit else ""
                logged = result.stderr.decode(errors="replace").strip()[-NUM_LOG_CHARS:]
                self._log = self._log or (logged + limit).strip()
                with anyio.move_on_after(STOP_TIMEOUT_S):
                    await drained.wait()
                tasks.cancel_scope.cancel()
        except* SandboxError as e:
            self._log = str(e.exceptions[0])

    async def _receive(
        self,
        messages: MemoryObjectSendStream[_Message],
        drained: anyio.Event,
        server: anyio.CancelScope,
    ) -> None:
        """Pass on what the server writes until nobody writes or a line is too long; then end it."""
        line = bytearray()
        while chunk := (await self._sandbox.exec(_READ)).stdout:
            first, *others = chunk.split(b"\n")
            line += first
            for other in others:
                text = line.decode(errors="replace")
                try:
                    parsed = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
                    await messages.send(SessionMessage(parsed))
                except ValueError as e:  # it is no message
                    await messages.send(e)
                line = bytearray(other)
            if len(line) > MAX_LINE_BYTES:
                self._log = f"it wrote a line of more than {MAX_LINE_BYTES} bytes"
                server.cancel()
                return
        drained.set()
        await anyio.sleep(STOP_TIMEOUT_S)
        self._log = self._log or "its output ended"
        server.cancel()


def _prepare(
    command: Sequence[str], files: Path | None, variables: Sequence[str]
) -> tuple[SandboxSpec, list[str]]:
    """Return the sandbox for a server, and the server's command in it."""
    # 1. The Python that the program is, or that lies beside it as in a venv.
    argv, shown, python = list(command), [Path("/usr")], None
    program = Path(command[0])
    is_python = re.fullmatch(r"python[0-9.]*", program.name) is not None
    beside = (program.parent / name for name in ("python", "python3"))
    found = program if is_python else next(filter(Path.exists, beside), None)
    if found is not None:
        # It may be a script that starts another one, such as pyenv's.
        ask = [str(found), "-I", "-S", "-c", "import sys; print(sys.executable)"]
        python = subprocess.run(ask, capture_output=True, text=True).stdout.strip() or None
    if python is not None:
        shown.append(Path(python).parents[1])
        argv[0] = python if is_python else argv[0]
    # 2. The files that the command names and that are not shown there.
    sources: dict[str, Path] = {}
    for i, path in enumerate(map(Path, argv)):
        if path.is_absolute() and path.is_file() and not any(map(path.is_relative_to, shown)):
            if sources.setdefault(path.name, path) != path:
                raise katgym.UsageError(f"the server's command names two files {path.name!r}")
            argv[i] = f"{_WORKDIR}/{path.name}"
    named = {
        name: FileEntry(content=path.read_bytes(), is_executable=os.access(path, os.X_OK))
        for name, path in sources.items()
    }
    # 3. The workspace holds them, over what is in `files`.
    folder = () if files is None else (layer_store().add_directory(files, exclude=()),)
    spec = SandboxSpec(
        layers=(*folder, layer_store().add_files(named)),
        workdir=_WORKDIR,
        env={name: os.environ[name] for name in variables},
        limits=LIMITS,
        python=python,
        ttl_s=_TTL_S,
    )
    return spec, argv
