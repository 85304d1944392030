"""Why a vLLM server's engine has ended, read from its log, and added to what the server answers.

The engine's traceback goes to the log; clients are told *EngineCore encountered an issue. See stack
trace (above)*. vLLM loads `EngineEnd` (`--middleware engine_end.EngineEnd`), which puts the cause
there. A file with the standard library alone, since it is imported in vLLM's environment.

Not here: what to do about a cause (`failure_hints.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

VARIABLE = "KATGYM_SERVER_LOG"
"""Of the server's environment: the file that its output goes to, and where that begins, in bytes,
as in 4096:/tmp/server.log."""
SEE_ABOVE = "See stack trace (above) for the root cause."
"""What vLLM 0.32 answers in place of a cause."""
CAUSE = "It was: "
"""What stands there instead, before the cause."""

_MAX_BYTES = 1 << 26
"""From a log's end: each request that is lost adds some 20,000 to what follows from a cause."""
_MAX_LINES = 400
"""Between a cause and what follows from it."""
_RAISED = re.compile(r"(?:^|\s)((?:[A-Za-z_][\w.]*)?(?:Error|Exception): .+)$")
_GONE = re.compile(
    r"((?:[Ee]ngine core|\S+ (?:core )?proc \S+) (?:died|exited) unexpectedly[^;,]*)"
)
"""What vLLM says of a process of its own that ended: by an error logged before, or was killed."""
_OF_ENGINE = re.compile(r"\((?:EngineCore|Worker)")
"""A line of such a process."""
_WORDS = ("Error: ", "Exception: ", "unexpectedly")
"""One of them is in every line that counts: most lines need no more than a look."""
_NO_ERROR = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d")
"""A line of vLLM's log that tells of an error which it goes on after."""
_FOLLOWS = re.compile(
    r"EngineDeadError|Executor failed\.|[Ss]ee (?:the )?(?:root cause|stack trace)|"
    r"check the stack trace above|(?:[Ee]ngine core|WorkerProc) initialization failed"
)
"""An error that tells of another one."""
_ERROR_OBJECT = re.compile(rb'"error": ?\{')
"""In an event that is an error; quotes that a model writes are escaped, so it is in no other."""
_PARTS = re.compile(r"\d+ validation errors? for \w+$")
"""An error whose reasons are the lines below it."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


def find_cause(log: str) -> tuple[str, int]:
    """Return what ended a server, as its log says it, and how many lines there are up to that.

    It is the last error before those that only tell of another one; without such the last of all.
    "" and 0 where there is none.
    """
    lines = log.splitlines()
    found, num_lines = "", 0
    for number, line in enumerate(lines, start=1):
        if not any(word in line for word in _WORDS):
            continue
        is_near = bool(found) and number - num_lines <= _MAX_LINES
        if gone := _GONE.search(line):
            if is_near and _OF_ENGINE.match(lines[num_lines - 1]):
                break
            found, num_lines = gone[1], number
            continue
        match = None if _NO_ERROR.search(line[:120]) else _RAISED.search(line)
        if match is None:
            continue
        if _FOLLOWS.search(match[1]):
            if is_near:
                break
            found, num_lines = "", 0  # that was of a request that failed some time before
            continue
        found, num_lines = match[1], number
        if _PARTS.search(found):
            reasons = (below.strip() for below in lines[number : number + 2])
            found = "; ".join([found, *filter(None, reasons)])
    return found[:500], num_lines


def read_log(log: Path, start: int) -> str:
    """Return what a log has from a byte on, or its end where that is too long."""
    with log.open("rb") as opened:
        opened.seek(max(start, opened.seek(0, os.SEEK_END) - _MAX_BYTES))
        return opened.read().decode(errors="replace")


class EngineEnd:
    """An ASGI application around another one."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        start, _, name = os.environ[VARIABLE].partition(":")
        self._start, self._log = int(start), Path(name)
        self._cause = ""

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Pass a request on, and its answer back; of one that failed with the cause."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head: Message | None = None
        body = b""
        is_stream = False

        async def explain(message: Message) -> None:
            nonlocal head, body, is_stream
            part = message.get("body", b"")
            if message["type"] == "http.response.start" and message["status"] >= 500:
                head = message  # its length is known when its text is
            elif message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                is_stream = kind.startswith(b"text/event-stream")
                await send(message)
            elif head is not None:
                body += part
                if not message.get("more_body", False):
                    text = self._explained(body)
                    headers = [pair for pair in head["headers"] if pair[0] != b"content-length"]
                    length = (b"content-length", str(len(text)).encode())
                    await send({**head, "headers": [*headers, length]})
                    await send({**message, "body": text})
            elif is_stream and _ERROR_OBJECT.search(part):
                await send({**message, "body": self._explained(part)})
            else:
                await send(message)

        await self._app(scope, receive, explain)

    def _explained(self, text: bytes) -> bytes:
        if SEE_ABOVE.encode() not in text:
            return text
        self._cause = self._cause or find_cause(read_log(self._log, self._start))[0]
        cause = json.dumps(self._cause)[1:-1]  # it is part of a JSON string
        return text.replace(SEE_ABOVE.encode(), f"{CAUSE}{cause}".encode()) if cause else text
