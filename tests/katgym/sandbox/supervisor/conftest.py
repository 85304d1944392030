"""Fixture `supervised`: plays with a supervisor that is a plain child process.

Not here: supervisors inside of namespaces or containers (the backends' tests).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from katgym.sandbox.supervised.bundle import bundle
from katgym.sandbox.supervised.channel import Channel

T = TypeVar("T")
MAIN = """
from katgym.sandbox.supervisor.guardian import Confinement
from katgym.sandbox.supervisor.program import Supervisor, handle_ignored_signals
handle_ignored_signals()
sample = sys.modules["sample"] = types.ModuleType("sample")
exec("def answer(data, report): report(data[::-1]); print('said'); return 7", sample.__dict__)
fd, work, tmp = int(sys.argv[1]), sys.argv[2], sys.argv[3]
Supervisor((fd, fd), Confinement(), workdir=work, tmpdir=tmp, wiped=(tmp,), may_call=True).serve()
"""


@dataclass
class Supervised:
    """A live supervisor."""

    channel: Channel
    process: subprocess.Popen[bytes]
    work: Path
    tmp: Path

    async def exec(
        self, argv: list[str] | str, *, stdin: bytes = b"", op: str = "exec", **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Run a command with generous limits; a text is one of bash."""
        command = ["/bin/bash", "-c", argv] if isinstance(argv, str) else argv
        limits = {"wall_s": 300, "output_bytes": 1 << 20, "rlimits": {}, **fields.pop("limits", {})}
        env = {"PATH": "/usr/bin:/bin"}
        request = {"argv": command, "env": env, "limits": limits, **fields}
        return await self.channel.request(op, request, stdin, max_reply_bytes=4 << 20)


@contextlib.asynccontextmanager
async def start(folder: Path) -> AsyncIterator[Supervised]:
    work, tmp = folder / "work", folder / "tmp"
    work.mkdir(parents=True)
    tmp.mkdir()
    program = folder / "program.py"
    program.write_text(bundle(main=MAIN))
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        command = [sys.executable, "-I", "-S", str(program), str(fd), str(work), str(tmp)]
        process = subprocess.Popen(command, pass_fds=(fd,))
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_unix_connection(lambda: Channel("sandbox test"), sock=ours)
    try:
        yield Supervised(channel, process, work, tmp)
    finally:
        channel.close()
        await asyncio.to_thread(process.wait, 300)


Play = Callable[[Supervised], Awaitable[T]]


@pytest.fixture
def supervised(tmp_path: Path) -> Callable[[Play[T]], T]:
    """Run `await play(box)` with a supervisor of its own, and return what it returns."""
    numbers = itertools.count()

    def run(play: Play[T]) -> T:
        async def main() -> T:
            async with start(tmp_path / str(next(numbers))) as box:
                return await play(box)

        return asyncio.run(main())

    return run
