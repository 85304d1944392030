"""API-key authentication: the session of a URL or of a key, and the owner's key.

Keys are compared by their hashes, in constant time, and never logged. Not here: sessions
(`session_table.py`).
"""

from __future__ import annotations

import hmac

from starlette.requests import Request

from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.gateway import Gateway
from katgym.gateway.session_table import LiveSession, has_key, sha256_of


class OwnerKey:
    """Tells the owner's requests from others."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config

    def check_owner(self, request: Request) -> None:
        """Raise `UNAUTHORIZED` unless the request has the owner's key."""
        if self.config.auth == "keys" and not self.is_owner(bearer(request)):
            raise refusal()

    def is_owner(self, key: str) -> bool:
        """Return whether a key is the owner's."""
        return hmac.compare_digest(sha256_of(key), sha256_of(self.config.admin_key))


class AgentKeys(OwnerKey):
    """Lets requests in."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.config)
        self._gateway = gateway

    async def session_of(self, request: Request) -> LiveSession:
        """Return the session a request belongs to; with auth "none" it begins here if it is new.

        Raises `UNAUTHORIZED`, for a session that does not exist as for a wrong key.
        """
        name, key = request.path_params.get("session_id", ""), bearer(request)
        if self.config.auth == "none":
            name = name or name_of_key(key)
            session = await self._gateway.sessions.find(name)
            if session is None:
                await self._gateway.manager.admit()
                session = await self._gateway.begin(name)
            return session
        sessions = self._gateway.sessions
        session = await sessions.find(name) if name else await sessions.by_key(key)
        if session is None or (name and not has_key(session, key) and not self.is_owner(key)):
            raise refusal()
        return session


def name_of_key(key: str) -> str:
    """Return the session that whoever has this key begins where everybody is let in."""
    return f"key-{sha256_of(key)[:16]}" if key else "default"


def bearer(request: Request) -> str:
    """Return the key a request carries, as OpenAI's clients, Anthropic's or Google's send it."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key") or request.headers.get("x-goog-api-key", "")


def refusal() -> GatewayError:
    """Return the error for a key of nobody."""
    return GatewayError(
        ErrorKind.UNAUTHORIZED,
        "no session has this key; POST /sessions makes one, with its key",
    )
