"""The host's side of a supervisor's stream: requests and replies, many under way at a time.

What comes from the other side is never trusted to be small or well-formed: every reply has a limit
that its request set, and a frame that breaks the rules ends the channel. Not here: the frames'
meaning (`katgym.sandbox.supervisor.program`), where the stream comes from (the backends).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from katgym.sandbox.base import SandboxError, SandboxFileError
from katgym.sandbox.supervisor.program import LENGTHS

MAX_HEADER_BYTES = 1 << 16
"""Of a reply."""
REPLY_SLACK_BYTES = 1 << 12
Reply = tuple[dict[str, Any], bytes]
"""The fields of a reply and its payload."""


class _Waiting(NamedTuple):
    future: asyncio.Future[Reply]
    max_bytes: int


class Channel(asyncio.Protocol):
    """Requests to one supervisor over a stream that an asyncio transport carries.

    subject: what is on the other side, for the texts of errors.
    describe_end: returns what is known about why the other side ended, for the error's text.
    """

    def __init__(self, subject: str, *, describe_end: Callable[[], str] = str) -> None:
        self.subject = subject
        self._describe_end = describe_end
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._incoming = bytearray()
        self._header: tuple[_Waiting, dict[str, Any], int] | None = None
        self._error: SandboxError | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the other side is gone."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None

    async def request(
        self,
        op: str,
        fields: Mapping[str, object] | None = None,
        payload: bytes = b"",
        *,
        max_reply_bytes: int = REPLY_SLACK_BYTES,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send one request; return the fields and the payload of its reply.

        `SandboxError` if the sandbox ends before it replies, does not reply in time (it is ended
        then: nothing more can be known about it), or sends more than `max_reply_bytes` of payload;
        `SandboxFileError` for an operation on files that cannot work. A caller that is cancelled
        ends the command it waited for.
        """
        number, future = self.expect(max_reply_bytes)
        header = json.dumps({**(fields or {}), "id": number, "op": op}).encode()
        self._send(LENGTHS.pack(len(header), len(payload)) + header, payload)
        try:
            await self._can_write.wait()
            async with asyncio.timeout(timeout_s):
                reply, data = await future
        except TimeoutError:
            self.fail(f"did not answer {op!r} within {timeout_s} s")
            raise self._again() from None
        except asyncio.CancelledError:
            self._cancel(number, op)
            raise
        problem = reply.get("error")
        if problem:
            text, error_number = str(problem["text"])[:500], int(problem["errno"])
            if problem["kind"] == "file":
                raise SandboxFileError(error_number, text)
            raise SandboxError(f"the supervisor refused: {text} ({os.strerror(error_number)})")
        return reply, data

    def expect(self, max_reply_bytes: int) -> tuple[int, asyncio.Future[Reply]]:
        """Return the id of a request, which the caller sends, and what its reply will be.

        `SandboxError` if the stream has ended.
        """
        if self._error is not None:
            raise self._again()
        number = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Waiting(future, max_reply_bytes)
        return number, future

    def send_raw(self, data: bytes) -> None:
        """Send bytes that are no request: a program, before it serves."""
        self._send(data, b"")

    def close(self) -> None:
        """End the stream; every caller that waits gets a `SandboxError`."""
        self.fail("was ended")

    def fail(self, reason: str) -> None:
        """End the stream for a reason that the errors tell."""
        if self._error is None:
            self._error = SandboxError(f"{self.subject} {reason}")
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(self._again())
        self._incoming.clear()
        self._can_write.set()
        if self._transport is not None:
            self._transport.abort()
        if not self.closed.done():
            self.closed.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End: called by asyncio."""
        if self._error is None:
            detail = self._describe_end()
            self.fail("ended by itself" + (f": {detail}" if detail else ""))

    def pause_writing(self) -> None:
        """Hold requests back: called by asyncio."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Send requests again: called by asyncio."""
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        """Take in bytes of the stream: called by asyncio."""
        if self._error is not None:
            return
        self._incoming += data
        try:
            while self._take_frame():
                pass
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.fail(f"sent a reply that breaks the rules: {error!s:.200}")

    def _take_frame(self) -> bool:
        """Deliver one reply; return False if it is not complete yet."""
        if self._header is None:
            if len(self._incoming) < LENGTHS.size:
                return False
            header_len, payload_len = LENGTHS.unpack_from(self._incoming)
            if header_len > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {header_len} bytes")
            if len(self._incoming) < LENGTHS.size + header_len:
                return False
            reply = json.loads(self._incoming[LENGTHS.size : LENGTHS.size + header_len])
            waiting = self._waiting.pop(reply["id"])
            if payload_len > waiting.max_bytes:
                # It is no longer among those that wait: it fails here, the others in `fail`.
                if not waiting.future.done():
                    text = f"{self.subject} sent {payload_len} bytes"
                    waiting.future.set_exception(SandboxError(text))
                raise ValueError(f"{payload_len} bytes, at most {waiting.max_bytes} are expected")
            del self._incoming[: LENGTHS.size + header_len]
            self._header = (waiting, reply, payload_len)
            self._waiting[reply["id"]] = waiting  # until it is complete
        waiting, reply, payload_len = self._header
        if len(self._incoming) < payload_len:
            return False
        payload = bytes(self._incoming[:payload_len])
        del self._incoming[:payload_len]
        self._header = None
        del self._waiting[reply["id"]]
        if not waiting.future.done():
            waiting.future.set_result((reply, payload))
        return True

    def _send(self, header: bytes, payload: bytes) -> None:
        if self._transport is None:
            raise SandboxError(f"{self.subject} is not connected")
        if len(payload) < 1 << 16:
            self._transport.write(header + payload)
        else:
            self._transport.writelines((header, payload))

    def _cancel(self, number: int, op: str) -> None:
        if self._error is None and op in ("exec", "call"):
            # The reply still comes and finds nobody; its own reply is not waited for either.
            other, ignored = self.expect(REPLY_SLACK_BYTES)
            # Should the sandbox end first, asyncio must not complain that nobody looked.
            ignored.add_done_callback(lambda done: done.cancelled() or done.exception())
            header = json.dumps({"id": other, "op": "cancel", "target": number}).encode()
            self._send(LENGTHS.pack(len(header), 0) + header, b"")

    def _again(self) -> SandboxError:
        assert self._error is not None
        return SandboxError(self._error.message, kind=self._error.kind)
