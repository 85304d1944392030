"""A gateway that serves in a thread, with its store and a client.

Not here: one in a process of its own (`test_gateway_faults.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from katgym import Turn
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp
from katgym.rollout_store import RolloutStore

from .scripted_server import serving

OWNER = "owner-key"


@dataclass
class Running:
    """A gateway that serves, its store, and a client of it."""

    url: str
    store: RolloutStore
    gateway: Gateway
    client: httpx.Client

    def chat(self, session: str, *messages: dict[str, Any], **body: Any) -> httpx.Response:
        """Ask for a chat completion."""
        whole = {"model": "tiny", "messages": list(messages), **body}
        return self.client.post(f"/s/{session}/v1/chat/completions", json=whole)

    def say(self, session: str, text: str, **body: Any) -> httpx.Response:
        """Ask with one user message."""
        return self.chat(session, {"role": "user", "content": text}, **body)

    def prompt(self, session: str, index: int) -> list[int]:
        """Return a node's whole prompt from what was written down."""
        return whole_prompt(self.store.turns(session), index)

    def owner(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask as the owner."""
        headers = {"Authorization": f"Bearer {OWNER}"}
        return self.client.request(method, path, json=body or None, headers=headers)


def wait_until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return once a condition holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


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
        **{"admin_key": OWNER, "auth": "none", "answering": "chat", **options},
    )
    with RolloutStore.open(folder) as store:
        gateway = Gateway(config, store)
        application = GatewayApp(gateway).application()
        application = application if around is None else around(application)
        with serving(application) as url, httpx.Client(base_url=url, timeout=300) as client:
            yield Running(url, store, gateway, client)
