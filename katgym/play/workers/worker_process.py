"""A worker that is a process of this machine, and the process itself.

    python -m katgym.play.workers.worker_process FD

Calls and answers are frames over a socket pair, number FD in the process: 8 bytes of length, 8 of
the call's number, then the bytes of `worker_calls.py`. The first call holds what engine to make. A
process whose socket is closed gives up what it plays and ends, so it does not outlive the one that
started it. Not here: which worker plays what (`player_pool.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from katgym.console import show_logs
from katgym.play.workers.player_pool import WorkerLostError
from katgym.play.workers.worker_calls import (
    Answerer,
    EngineRef,
    pack_answer,
    pack_error,
    unpack_answer,
)
from katgym.system.openmp import settle_openmp

_HEAD = struct.Struct("<QQ")
_GRACE_S = 10.0
"""A process may take so long to give up what it plays."""
_POLL_S = 0.5


class WorkerProcess:
    """A `Worker` of this machine."""

    def __init__(self, engine: EngineRef, number: int) -> None:
        self.name = f"worker {number}"
        self.engine = engine
        self._number = number
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._num_calls = 0

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None, "it is started"
        return self._process.pid

    async def start(self) -> None:
        await self.aclose()
        ours, theirs = socket.socketpair()
        with theirs:
            path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # what envs print is not this command's output
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the one that started it
            )
        self.name = f"worker {self._number} (process {self._process.pid})"
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))
        is_verbose = logging.getLogger("katgym").isEnabledFor(logging.DEBUG)
        unpack_answer(await self.play(pickle.dumps((self.engine, is_verbose))))

    async def play(self, call: bytes) -> bytes:
        if self._writer is None or self._reading is None or self._reading.done():
            raise WorkerLostError(f"{self.name} has ended")
        self._num_calls += 1
        number = self._num_calls
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self._writer.write(_HEAD.pack(len(call), number) + call)
            await self._writer.drain()
            return await answer
        except ConnectionError as e:
            raise WorkerLostError(f"{self.name} has ended") from e
        finally:
            self._calls.pop(number, None)

    async def aclose(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Give every call its answer until the process ends, and then the rest an error."""
        try:
            while True:
                size, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                answer = await reader.readexactly(size)
                if (waiting := self._calls.get(number)) is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            for waiting in self._calls.values():
                if not waiting.done():
                    waiting.set_exception(WorkerLostError(f"{self.name} has ended"))


async def serve(channel: socket.socket) -> None:
    """Answer calls until the socket is closed."""
    reader, writer = await asyncio.open_connection(sock=channel)
    playing: set[asyncio.Task[None]] = set()
    size, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    ref, is_verbose = pickle.loads(await reader.readexactly(size))
    show_logs(is_verbose=is_verbose)

    def send(number: int, answer: bytes) -> None:
        writer.write(_HEAD.pack(len(answer), number) + answer)

    try:
        answerer = Answerer(ref.make())
    except Exception as e:  # it is raised where the engine was asked for
        send(number, pack_error(e))
        await writer.drain()
        return
    send(number, pack_answer())

    async def answer(number: int, call: bytes) -> None:
        send(number, await answerer.answer(call))
        await writer.drain()

    try:
        while True:
            size, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
            task = asyncio.create_task(answer(number, await reader.readexactly(size)))
            playing.add(task)
            task.add_done_callback(playing.discard)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # whoever asked has ended, or wants no more
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await answerer.aclose()


def _end_with(parent: int) -> NoReturn:
    """End the process, whatever it does, some time after its parent."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)
    os._exit(1)


def main() -> None:
    """Play what the socket of the first argument asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settle_openmp(os.environ)
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    os._exit(0)  # threads of envs that hang are waited for by nobody


if __name__ == "__main__":
    main()
