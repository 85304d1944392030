"""Messages between client and server, as msgpack, and how long each may take.

A sandbox's operations go as they are (`katgym.sandbox.operations`). Not here: HTTP (`client.py`,
`server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from katgym.errors import UsageError
from katgym.sandbox.base import SandboxError, SandboxFileError, SandboxUnavailableError
from katgym.sandbox.spec import SandboxSpec

API = "/v1"
MAX_BODY_BYTES = 256 << 20
LEASE_S = 60.0
"""A client that is not heard of for so long has died; its sandboxes are ended."""
T = TypeVar("T")


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make a sandbox; a repeated `request_id` gets the one that was made for it."""

    client: str
    request_id: str
    spec: SandboxSpec
    """Without its layers, which are folders of one machine."""
    digests: tuple[str, ...] = ()
    """Of the layers."""


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make sandboxes from one; a repeated `request_id` gets those that were made for it."""

    client: str
    request_id: str
    num: int
    at: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request could not be done.

    `kind` is "usage", "file", "layer" (one has to be uploaded), "unavailable", "full" or "sandbox".
    """

    kind: str
    text: str
    errno: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How full a server is."""

    num_sandboxes: int
    """Sandboxes of all clients that live or are being made."""
    max_sandboxes: int


class FullError(SandboxError):
    """The server has as many sandboxes as it may; it has room when some end."""


class MissingLayerError(UsageError):
    """A layer has to be uploaded first; the client sees to it."""


_ERRORS: Mapping[str, type[Exception]] = {
    "file": SandboxFileError,
    "layer": MissingLayerError,
    "usage": UsageError,
    "unavailable": SandboxUnavailableError,
    "full": FullError,
}
"""Kind of a problem -> its error, a narrower one before a wider; "sandbox" is all the others."""
_MARK = "\x00raw\x00"


def encode(value: Any) -> bytes:
    """Return msgpack; text with surrogates (odd file names) is kept."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return msgspec.msgpack.encode(_map_text(plain, _escape))


def decode(data: bytes, kind: type[T]) -> T:
    """Return the typed value; `UsageError` says what does not fit."""
    try:
        return msgspec.convert(_map_text(msgspec.msgpack.decode(data), _unescape), kind)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as e:
        raise UsageError(f"not a {kind.__name__}: {e}") from e


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_text(k, change): _map_text(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_text(item, change) for item in value]
    return value


def _escape(text: str) -> str:
    """Write text that is no valid UTF-8 as marked Latin-1 of its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _MARK + text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def _unescape(text: str) -> str:
    if not text.startswith(_MARK):
        return text
    return text[len(_MARK) :].encode("latin-1").decode("utf-8", "surrogateescape")


def problem_of(error: Exception) -> Problem:
    """Return an error as it goes over the wire."""
    if isinstance(error, SandboxFileError):
        return Problem(kind="file", text=str(error.strerror or error), errno=error.errno or 0)
    kinds = (kind for kind, error_type in _ERRORS.items() if isinstance(error, error_type))
    return Problem(kind=next(kinds, "sandbox"), text=str(error))


def error_of(problem: Problem) -> Exception:
    """Return the error to raise for a problem."""
    if problem.kind == "file":
        return SandboxFileError(problem.errno, problem.text)
    return _ERRORS.get(problem.kind, SandboxError)(problem.text)
