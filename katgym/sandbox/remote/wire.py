"""What client and server say to each other, as msgpack, and how long each may take.

Not here: HTTP (`client.py`, `server.py`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from katgym.errors import UsageError
from katgym.sandbox.base import (
    AGENT,
    MAX_READ_BYTES,
    SandboxError,
    SandboxFileError,
    SandboxUnavailableError,
)
from katgym.sandbox.limits import SandboxLimits

API = "/v1"
MAX_BODY_BYTES = 256 << 20
LEASE_S = 60.0
"""A client that is not heard of for so long has died; its sandboxes are ended."""
T = TypeVar("T")


class WireSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A `SandboxSpec` with its layers by digest."""

    layers: tuple[str, ...]
    workdir: str
    env: dict[str, str]
    limits: SandboxLimits
    python: str | None = None
    image: str | None
    preload: tuple[str, ...] = ()
    ttl_s: float
    labels: dict[str, str]


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make a sandbox; a repeated `request_id` gets the one that was made for it."""

    client: str
    request_id: str
    spec: WireSpec


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run a command."""

    command: list[str] | str
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: bytes = b""
    limits: SandboxLimits | None = None
    user: str = AGENT


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Call a function of a preloaded module."""

    function: str
    argument: bytes
    cwd: str | None = None
    env: dict[str, str] | None = None
    limits: SandboxLimits | None = None


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Read a file."""

    path: str
    max_bytes: int = MAX_READ_BYTES


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write a file."""

    path: str
    data: bytes
    mode: int = 0o644


class DiffRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Tell what changed."""

    max_file_bytes: int = MAX_READ_BYTES
    max_changes: int = 10_000


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Go back to a snapshot, or to the layers."""

    to: str | None = None


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make sandboxes that start as this one is; a repeated `request_id` gets the same ones."""

    client: str
    request_id: str
    num: int = 1
    at: str | None = None


class LayerFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a layer that is uploaded."""

    path: str
    content: bytes = b""
    is_executable: bool = False
    link_target: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request could not be done.

    `kind` is "usage", "file", "layer" (one has to be uploaded), "unavailable" or "sandbox".
    """

    kind: str
    text: str
    errno: int = 0


class MissingLayerError(UsageError):
    """A layer has to be uploaded first; the client sees to it."""


def encode(value: Any) -> bytes:
    """Return msgpack; text with surrogates (odd file names) is kept."""
    return msgspec.msgpack.encode(_escaped(msgspec.to_builtins(value, builtin_types=(bytes,))))


def decode(data: bytes, kind: type[T]) -> T:
    """Return the typed value; `UsageError` says what does not fit."""
    try:
        return msgspec.convert(_unescaped(msgspec.msgpack.decode(data)), kind)
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise UsageError(f"not a {kind.__name__}: {e}") from e


_MARK = "\x00raw\x00"


def _escaped(value: Any) -> Any:
    """Write strings that are no valid UTF-8 as marked Latin-1 of their bytes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return _MARK + value.encode("utf-8", "surrogateescape").decode("latin-1")
        return value
    if isinstance(value, dict):
        return {_escaped(k): _escaped(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    return value


def _unescaped(value: Any) -> Any:
    if isinstance(value, str):
        if value.startswith(_MARK):
            raw = value[len(_MARK) :].encode("latin-1")
            return raw.decode("utf-8", "surrogateescape")
        return value
    if isinstance(value, dict):
        return {_unescaped(k): _unescaped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_unescaped(item) for item in value]
    return value


def problem_of(error: Exception) -> Problem:
    """Return an error as it goes over the wire."""
    if isinstance(error, SandboxFileError):
        return Problem(kind="file", text=str(error.strerror or error), errno=error.errno or 0)
    if isinstance(error, UsageError):
        kind = "layer" if isinstance(error, MissingLayerError) else "usage"
        return Problem(kind=kind, text=str(error))
    if isinstance(error, SandboxUnavailableError):
        return Problem(kind="unavailable", text=str(error))
    return Problem(kind="sandbox", text=str(error))


def error_of(problem: Problem) -> Exception:
    """Return the error to raise for a problem."""
    if problem.kind == "file":
        return SandboxFileError(problem.errno, problem.text)
    if problem.kind == "usage":
        return UsageError(problem.text)
    if problem.kind == "layer":
        return MissingLayerError(problem.text)
    if problem.kind == "unavailable":
        return SandboxUnavailableError(problem.text)
    return SandboxError(problem.text)
