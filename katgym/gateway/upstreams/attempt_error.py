"""Failures of one attempt at one model server: what its status and body mean.

Not here: what follows from one (`pool.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.vllm_server.failure_hints import answer_hint

_MAX_SHOWN = 500


@dataclass(eq=False)
class AttemptError(Exception):
    """An attempt that may be made again elsewhere."""

    error: GatewayError
    asked_s: float = 0.0
    """Seconds that the server asked to wait."""
    is_dead: bool = False
    """Whether the server could not be reached or hangs."""
    is_lost: bool = False
    """Whether the server had the call, so that the call may be what broke it."""
    is_passing: bool = True
    """Whether the same server may answer another time."""
    is_given_up: bool = False
    """Whether a server that is well has given the call up, as one does that is told to sleep."""


def raise_for(status: int, content: bytes, asked_s: float) -> None:
    """Raise what an error answer means."""
    text = _message(content)
    lowered = text.lower()
    if status == 404 and "model" in lowered:
        raise GatewayError(ErrorKind.UNKNOWN_MODEL, text)
    if status in (400, 413, 422):
        is_long = "context length" in lowered or "maximum model length" in lowered
        kind = ErrorKind.CONTEXT_LENGTH if is_long else ErrorKind.MALFORMED
        raise GatewayError(kind, text)
    advice = answer_hint(text) if status >= 500 else ""
    told = f"the model server answered {status}: {text}" + (f" ({advice})" if advice else "")
    error = GatewayError(ErrorKind.UPSTREAM, told)
    raise AttemptError(error, asked_s=asked_s, is_passing=status == 429 or status >= 500)


def is_about_streams(status: int, content: bytes) -> bool:
    """Return whether an error answer refuses to stream."""
    return status in (400, 405, 422, 501) and b"stream" in content[:_MAX_SHOWN].lower()


def unreachable(url: str, error: BaseException) -> GatewayError:
    """Return the error for a server that cannot be connected to."""
    return GatewayError(
        ErrorKind.UPSTREAM,
        f"the model server at {url} cannot be reached ({type(error).__name__}: {error});"
        " katgym vllm serve MODEL starts one",
    )


def _message(content: bytes) -> str:
    """Return what an error body says."""
    try:
        data = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content[:_MAX_SHOWN].decode("utf-8", "replace")
    if isinstance(data, dict):
        inner = data.get("error")
        found = inner.get("message") if isinstance(inner, dict) else inner or data.get("message")
        if found or "detail" in data:
            return str(found or data["detail"])[:_MAX_SHOWN]
    return str(data)[:_MAX_SHOWN]
