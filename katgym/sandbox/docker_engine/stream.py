"""A container's attached stream as the transport of a `Channel`.

The engine wraps what a container writes in frames of its own: 1 byte stream number, 3 bytes zero,
4 bytes length. Not here: the frames inside of them (`katgym.sandbox.supervised.channel`).
"""

from __future__ import annotations

import asyncio
import socket
import struct

from katgym.sandbox.supervised.channel import Channel

_FRAME = struct.Struct("!B3xI")
_STDOUT, _STDERR = 1, 2
_MAX_STDERR = 4096


class AttachedStream(asyncio.Protocol):
    """Unwraps the engine's frames for a channel, and keeps the end of stderr for error texts."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._head = bytearray()
        self._left = 0
        self._stream = 0
        self.stderr = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: called by asyncio."""
        self._channel.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: called by asyncio."""
        self._channel.connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._channel.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take in bytes of the stream: called by asyncio."""
        view = memoryview(data)
        while view:
            if self._left == 0:
                missing = _FRAME.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < _FRAME.size:
                    return
                self._stream, self._left = _FRAME.unpack(self._head)
                self._head.clear()
                if self._stream not in (_STDOUT, _STDERR):
                    self._channel.fail(f"is attached to something else (stream {self._stream})")
                    return
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if self._stream == _STDOUT:
                self._channel.data_received(bytes(part))
            else:
                self.stderr += part
                del self.stderr[:-_MAX_STDERR]

    def last_words(self) -> str:
        """Return what the container wrote to stderr last."""
        return self.stderr.decode("utf-8", "replace").strip()[-500:]


async def open_channel(sandbox: str, sock: socket.socket) -> tuple[Channel, AttachedStream]:
    """Return a channel over a socket that the engine has attached to a container."""
    sock.setblocking(False)
    stream: AttachedStream | None = None

    def describe_end() -> str:
        return stream.last_words() if stream is not None else ""

    channel = Channel(f"sandbox {sandbox}", describe_end=describe_end)
    stream = AttachedStream(channel)
    loop = asyncio.get_running_loop()
    connect = (
        loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
    )
    try:
        await connect(lambda: stream, sock=sock)
    except BaseException:
        sock.close()
        raise
    return channel, stream
