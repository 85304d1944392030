"""Calls of large bodies, parsed in a process of their own, one after the other.

Not here: what that process does (`body_process.py`); bodies of common size (`bodies.py`).
"""

from __future__ import annotations

import asyncio
import io
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

import msgspec

from katgym.gateway.call import ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.server.body_process import BodyReading, read_frame, write_frame

LARGE_BYTES = 512 << 10
"""Of a body from which on it is parsed elsewhere: a fraction of what a loop can spare at once."""
MANY_ENTRIES = 5000
"""Of a list in a body; likewise."""


def has_many_entries(body: Mapping[str, Any]) -> bool:
    """Return whether a body that is not large takes long to parse all the same."""
    return any(isinstance(value, list) and len(value) > MANY_ENTRIES for value in body.values())


class LargeBodies:
    """Parses large bodies without holding up the loop; the process starts with the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()

    async def parse(self, reading: BodyReading, content: bytes) -> tuple[ModelCall, list[bytes]]:
        """Return the call of a body, and its chain; raises `GatewayError`."""
        async with self._lock:
            asking = asyncio.ensure_future(asyncio.to_thread(self._ask, reading, content))
            try:
                found = await asyncio.shield(asking)
            except asyncio.CancelledError:
                await asyncio.wait((asking,))  # its answer is no other call's
                raise
        if isinstance(found, GatewayError):
            raise found
        return found  # type: ignore[no-any-return]  # what `body_process.parse` returned

    def close(self) -> None:
        """End the process; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, reading: BodyReading, content: bytes) -> Any:
        if self._process is None or self._process.poll() is not None:
            self.close()
            command = [sys.executable, "-m", "katgym.gateway.server.body_process"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        process = self._process
        to, back = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
        try:
            write_frame(to, msgspec.json.encode(reading) + b"\n", content)
            answer = read_frame(back)
            texts = []
            while pieces := read_frame(back):
                parts = (part.decode("utf-8", "surrogatepass") for part in pickle.loads(pieces))
                texts.append("".join(parts))
        except (EOFError, OSError) as e:
            self.close()
            return GatewayError(ErrorKind.TOO_LARGE, f"the body could not be parsed: {e}")
        return _Unpickler(answer, texts).load()


class _Unpickler(pickle.Unpickler):
    """Puts long texts back where they were left out."""

    def __init__(self, content: bytes, texts: list[str]) -> None:
        super().__init__(io.BytesIO(content))
        self._texts = texts

    def persistent_load(self, pid: int) -> str:
        """Return a text by its place."""
        return self._texts[pid]
