"""A gateway that serves in a thread, with its store and a client.

Not here: one in a process of its own (`test_gateway_faults.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from katgym import Turn
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import FailedCall

from .scripted_server import serving

OWNER = "owner-key"
USER = {"role": "user", "content": "hi"}


@dataclass
class Running:
    """A gateway that serves, its store, a client of it, and the session that it is asked in."""

    url: str
    store: RolloutStore
    gateway: Gateway
    client: httpx.Client
    session: str = "s"
    arrived: list[str] = field(default_factory=list)
    """Paths of the requests that came."""
    answered: list[tuple[str, int]] = field(default_factory=list)
    """Path and status of each answer that has begun."""

    def of(self, session: str) -> Running:
        """Return the same gateway to be asked in another session."""
        return replace(self, session=session)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Ask below the session's URL."""
        return self.client.post(f"/s/{self.session}/{path}", **options)

    def chat(self, *messages: dict[str, Any], **body: Any) -> httpx.Response:
        """Ask for a chat completion."""
        whole = {"model": "tiny", "messages": list(messages), **body}
        return self.post("v1/chat/completions", json=whole)

    def say(self, text: str, **body: Any) -> httpx.Response:
        """Ask with one user message."""
        return self.chat({"role": "user", "content": text}, **body)

    def turns(self) -> list[Turn]:
        """Return what was written down of the session."""
        return self.store.turns(self.session)

    def failed_calls(self) -> list[FailedCall]:
        """Return what was written down of the session's calls that have no answer."""
        return self.store.failed_calls(self.session)

    def prompt(self, index: int) -> list[int]:
        """Return a node's whole prompt from what was written down."""
        return whole_prompt(self.turns(), index)

    def owner(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask as the owner."""
        headers = {"Authorization": f"Bearer {OWNER}"}
        return self.client.request(method, path, json=body or None, headers=headers)

    def move(self, version: int, **more: Any) -> httpx.Response:
        """Tell as the owner that the weights are of a version."""
        return self.owner("POST", "/control/resume", version=version, **more)

    @contextlib.contextmanager
    def hanging_up(self, path: str, **body: Any) -> Iterator[None]:
        """Ask as the owner, and disconnect when the block ends, without an answer."""
        place = httpx.URL(self.url)
        with contextlib.closing(http.client.HTTPConnection(place.host, place.port)) as connection:
            headers = {"Authorization": f"Bearer {OWNER}"}
            connection.request("POST", path, json.dumps(body), headers)
            yield

    def noting(self, application: Any) -> Any:
        """Return an application whose requests and answers are noted here."""

        async def note(scope: Any, receive: Any, send: Any) -> None:
            async def note_answer(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self.answered.append((scope["path"], message["status"]))
                await send(message)

            if scope["type"] == "http":
                self.arrived.append(scope["path"])
            await application(scope, receive, note_answer)

        return note


def whole_prompt(turns: list[Turn], index: int) -> list[int]:
    tokens = turns[index].tokens
    assert tokens is not None
    if tokens.parent is None:
        return list(tokens.prompt_ids)
    parent = turns[tokens.parent].tokens
    assert parent is not None
    before = [*whole_prompt(turns, tokens.parent), *parent.completion_ids]
    return [*before[: tokens.num_shared], *tokens.prompt_ids]


@contextlib.contextmanager
def running(
    folder: Path, *upstreams: str, around: Callable[[Any], Any] | None = None, **options: Any
) -> Iterator[Running]:
    """Serve a gateway in a thread; around: wraps its application."""
    config = GatewayConfig(
        upstreams=upstreams,
        **{"admin_key": OWNER, "auth": "none", "answering": "chat", "max_wait_s": 300.0, **options},
    )
    with RolloutStore.open(folder) as store:
        gateway = Gateway(config, store)
        application = GatewayApp(gateway).application()
        application = application if around is None else around(application)
        with httpx.Client(timeout=300) as client:
            found = Running("", store, gateway, client)
            with serving(found.noting(application)) as found.url:
                client.base_url = found.url
                yield found
