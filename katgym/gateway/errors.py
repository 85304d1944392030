"""Failures of calls: one exception, with status and kind.

Not here: how an API writes an error (`wire/`).
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial

from katgym.errors import KatgymError


class ErrorKind(StrEnum):
    """Why a call has no answer; kept with the session's failed calls."""

    MALFORMED = "malformed"
    """The body is not what the API takes."""
    UNSUPPORTED = "unsupported"
    """The body asks for something that this gateway does not do."""
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_ROUTE = "unknown_route"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_PREVIOUS = "unknown_previous"
    """The body goes on from an answer that the session does not have."""
    ENCODED = "encoded"
    """The body is compressed."""
    KEY_REUSED = "key_reused"
    """The idempotency key is of a call that asked for something else."""
    TOO_LARGE = "too_large"
    """The body has more bytes than are read."""
    CONTEXT_LENGTH = "context_length"
    """The prompt does not fit the model."""
    SESSION_ENDED = "session_ended"
    BUDGET = "budget"
    """The session has used up its calls or tokens."""
    DEADLINE = "deadline"
    STALE = "stale"
    """The session's first tokens are from weights that are too old."""
    BUSY = "busy"
    """Not at this time: try again."""
    CLIENT_GONE = "client_gone"
    """The client disconnected before its answer was there."""
    UPSTREAM = "upstream"
    """The model server failed."""
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UNAVAILABLE = "unavailable"
    """No model server takes calls."""
    NO_TOKEN_IDS = "no_token_ids"
    """The model server answered without token ids or log-probabilities."""
    STORE = "store"
    """The answer could not be written down, so it was not given."""
    INTERNAL = "internal"


_STATUS = {
    ErrorKind.MALFORMED: 400,
    ErrorKind.UNSUPPORTED: 400,
    ErrorKind.UNAUTHORIZED: 401,
    ErrorKind.UNKNOWN_ROUTE: 404,
    ErrorKind.UNKNOWN_SESSION: 404,
    ErrorKind.UNKNOWN_MODEL: 404,
    ErrorKind.UNKNOWN_PREVIOUS: 400,
    ErrorKind.ENCODED: 415,
    ErrorKind.KEY_REUSED: 422,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.CONTEXT_LENGTH: 400,
    ErrorKind.SESSION_ENDED: 403,
    ErrorKind.BUDGET: 403,
    ErrorKind.DEADLINE: 403,
    ErrorKind.STALE: 403,
    ErrorKind.BUSY: 429,
    ErrorKind.CLIENT_GONE: 499,
    ErrorKind.UPSTREAM: 502,
    ErrorKind.UPSTREAM_TIMEOUT: 504,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.NO_TOKEN_IDS: 502,
    ErrorKind.STORE: 507,
    ErrorKind.INTERNAL: 500,
}


class GatewayError(KatgymError):
    """A call that is answered with an error.

    retry_after_s: seconds after which the client may try again; None says nothing of it.
    """

    def __init__(
        self, kind: ErrorKind, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return _STATUS[self.kind]

    def __reduce__(self) -> tuple[object, ...]:
        made = partial(type(self), retry_after_s=self.retry_after_s)
        return made, (self.kind, self.message)
