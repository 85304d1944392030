"""The owner's side of a gateway: makes sessions, points agents at them, reports their rewards.

    async with GatewayClient("http://127.0.0.1:8900", admin_key) as gateway:
        async with gateway.session(group_id="task-7") as session:
            process = await asyncio.create_subprocess_exec("my-agent", env=session.environ())
            await process.wait()
            await session.finish(reward=1.0)

Not here: the server (`server/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from katgym.errors import PolicyError
from katgym.policies.endpoints.http_retry import HttpClient, HttpStatusError, RetryConfig

URL_VARIABLE = "KATGYM_GATEWAY_URL"
KEY_VARIABLE = "KATGYM_GATEWAY_KEY"
_ASK_EVERY_S = 1.0
_MAX_BROKEN = 10
"""Failures in a row while a session is to begin, after which it is given up."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One agent's session, from its owner's side."""

    session_id: str
    key: str
    """What the agent's clients send."""
    openai_base_url: str
    anthropic_base_url: str
    google_base_url: str
    _client: GatewayClient

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment for an agent's process.

        base: the environment it is added to; None for this process's own, without the owner's key.
        """
        own = dict(os.environ if base is None else base)
        own.pop(KEY_VARIABLE, None)
        return own | {
            "OPENAI_BASE_URL": self.openai_base_url,
            "OPENAI_API_BASE": self.openai_base_url,
            "OPENAI_API_KEY": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.google_base_url,
            "GEMINI_API_KEY": self.key,
            "GOOGLE_API_KEY": self.key,  # an SDK prefers it: the owner's own is not sent here
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.key,
            "ANTHROPIC_AUTH_TOKEN": self.key,
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        }

    @contextlib.contextmanager
    def environment(self) -> Any:
        """Set the variables in this process while the block runs; they are put back after it."""
        before = dict(os.environ)
        os.environ.update(self.environ({}))
        try:
            yield self
        finally:
            for name in self.environ({}):
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)

    async def reward(self, value: float, components: Mapping[str, float] | None = None) -> None:
        """Report the session's reward; the last one reported counts."""
        body = {"reward": value, "components": dict(components or {})}
        await self._client.post(f"/s/{self.session_id}/reward", body)

    async def finish(
        self,
        *,
        reward: float | None = None,
        components: Mapping[str, float] | None = None,
        is_failed: bool = False,
    ) -> None:
        """End the session; is_failed: it counts for nothing."""
        body: dict[str, Any] = {"status": "failed" if is_failed else "finished"}
        if reward is not None:
            body |= {"reward": reward, "components": dict(components or {})}
        await self._client.post(f"/s/{self.session_id}/finish", body)

    async def status(self) -> dict[str, Any]:
        """Return what the gateway knows of the session."""
        return await self._client.get(f"/s/{self.session_id}")


class GatewayClient:
    """Talks to a gateway as its owner; every method raises `PolicyError` if that fails."""

    def __init__(
        self,
        url: str = "",
        admin_key: str = "",
        *,
        timeout_s: float = 60.0,
        admission_s: float = 7200.0,
    ) -> None:
        """Prepare a client.

        url, admin_key: "" takes KATGYM_GATEWAY_URL and KATGYM_GATEWAY_KEY.
        timeout_s: for an answer. admission_s: for a session to begin, where the gateway holds
        sessions back until the weights have moved (`--sessions-per-version`).
        """
        self.url = (url or os.environ.get(URL_VARIABLE, "http://127.0.0.1:8900")).rstrip("/")
        key = admin_key or os.environ.get(KEY_VARIABLE, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = HttpClient(self.url, retry=RetryConfig(timeout_s=timeout_s), headers=headers)
        self._admission_s = admission_s
        # Its answers may take as long as the weights do to move, and 429 is one of them.
        self._admission = HttpClient(
            self.url, retry=RetryConfig(timeout_s=admission_s, max_retries=0), headers=headers
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; may be called twice."""
        await self._http.aclose()
        await self._admission.aclose()

    async def create_session(self, session_id: str = "", **options: Any) -> AgentSession:
        """Make a session; waits while the gateway lets none begin, and asks again when an answer
        is lost: it makes one session all the same.

        options: `group_id`, `metadata`, `max_calls`, `max_tokens`, `timeout_s`.
        """
        body = {"id": session_id, **options} if session_id else options
        deadline = time.monotonic() + self._admission_s
        num_broken = 0
        once = {"Idempotency-Key": uuid.uuid4().hex}
        while True:  # until the gateway lets it begin
            try:
                made: dict[str, Any] = await self._admission.post("/sessions", body, **once)
                break
            except PolicyError as e:
                is_busy = isinstance(e, HttpStatusError) and e.status == 429
                num_broken = 0 if is_busy else num_broken + 1
                is_passing = is_busy or e.kind == "policy_unavailable"
                if not is_passing or num_broken > _MAX_BROKEN or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_ASK_EVERY_S)
        return AgentSession(
            made["id"],
            made["key"],
            made["openai_base_url"],
            made["anthropic_base_url"],
            made["google_base_url"],
            self,
        )

    @contextlib.asynccontextmanager
    async def session(self, session_id: str = "", **options: Any) -> AsyncIterator[AgentSession]:
        """Make a session for a block; it ends with the block, as failed if the block raises."""
        session = await self.create_session(session_id, **options)
        try:
            yield session
        except BaseException:
            with contextlib.suppress(Exception):
                await session.finish(is_failed=True)
            raise
        if (await session.status())["status"] == "open":
            await session.finish()

    async def pause(self) -> dict[str, Any]:
        """Hold back calls that have not gone out to a model server."""
        return await self.post("/control/pause", {})

    async def resume(self, version: int | None = None, model: str = "") -> dict[str, Any]:
        """Let calls out again, from here on with weights of this version.

        model: name of the adapter that has them. Calls need not be paused for one: those that are
        out end with the adapter, and the version, that they went out with.
        """
        body = {} if version is None else {"version": version}
        return await self.post("/control/resume", {**body, "model": model} if model else body)

    async def replace_sessions(self, num_sessions: int, *, key: str = "") -> dict[str, Any]:
        """Let so many more sessions begin, in place of some that nothing is learned from.

        key: names those, so that asking again changes nothing, whoever does and however late.
        """
        named = {"key": key} if key else {}
        return await self.post("/control/replace", {"num_sessions": num_sessions, **named})

    async def sessions(self, status: str = "") -> AsyncIterator[dict[str, Any]]:
        """Yield the store's sessions, or those in one status, as the gateway shows them.

        They are asked for page by page; one that is sealed meanwhile may come twice.
        """
        query = {"status": status} if status else {}
        while True:
            page = await self.get(f"/sessions?{urlencode(query)}")
            for session in page["sessions"]:
                yield session
            if page["next"] is None:
                return
            query["after"] = page["next"]

    async def status(self) -> dict[str, Any]:
        """Return the rollout manager's state and the model servers'."""
        return await self.get("/control/status")

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a POST."""
        answer: dict[str, Any] = await self._http.post(path, body)
        return answer

    async def get(self, path: str) -> dict[str, Any]:
        """Return the answer to a GET."""
        answer: dict[str, Any] = await self._http.get(path)
        return answer
