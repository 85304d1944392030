"""A `Channel` over a container's attached stream.

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


class AttachedChannel(Channel):
    """A channel in the engine's frames; keeps the end of stderr for error texts."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject, describe_end=self.last_words)
        self._head = bytearray()
        self._left = 0
        self._stream = 0
        self._stderr = bytearray()

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
                    self.fail(f"is attached to something else (stream {self._stream})")
                    return
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if self._stream == _STDOUT:
                super().data_received(bytes(part))
            else:
                self._stderr += part
                del self._stderr[:-_MAX_STDERR]

    def last_words(self) -> str:
        """Return what the container wrote to stderr last."""
        return self._stderr.decode("utf-8", "replace").strip()[-500:]


async def open_channel(sandbox: str, sock: socket.socket) -> AttachedChannel:
    """Return a channel over a socket that the engine has attached to a container."""
    sock.setblocking(False)
    channel = AttachedChannel(f"sandbox {sandbox}")
    loop = asyncio.get_running_loop()
    connect = (
        loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
    )
    try:
        await connect(lambda: channel, sock=sock)
    except BaseException:
        sock.close()
        raise
    return channel
