"""Servers that run already: waiting for one, and what it is.

Not here: servers of our own (`server.py`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from katgym.errors import InfrastructureError, UsageError
from katgym.policies.endpoints.http_retry import HttpClient, RetryConfig
from katgym.vllm_server.control import Abilities, VllmControl
from katgym.vllm_server.server import is_healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What a running server says of itself."""

    url: str
    models: dict[str, int | None]
    """Served models and adapters, with the tokens a call may have; None: as its base model."""
    abilities: Abilities
    weight_version: str
    """"" where the server has no RL routes."""
    is_paused: bool


def attach(url: str, *, timeout_s: float = 0.0) -> VllmControl:
    """Return the controls of a running server; close them with `aclose`.

    timeout_s: how long to wait for it to be healthy. Raises `InfrastructureError` when it is not.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"a server's URL looks like http://localhost:8000, got {url!r}")
    url = url.rstrip("/").removesuffix("/v1")
    deadline = time.monotonic() + timeout_s
    while not is_healthy(url):
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"no healthy vLLM server answers at {url} (asked {url}/health). Start one with:"
                " katgym vllm serve MODEL"
            )
        time.sleep(0.5)
    return VllmControl(HttpClient(base_url=url, retry=RetryConfig(timeout_s=600.0, max_retries=1)))


async def server_status(control: VllmControl) -> ServerStatus:
    """Ask a server what it is; raises `PolicyError`."""
    abilities, cards = await asyncio.gather(control.abilities(), control.models())
    version, is_paused = "", False
    if abilities.has_rl:
        version, is_paused = await asyncio.gather(control.weight_version(), control.is_paused())
    return ServerStatus(
        url=control.http.base_url,
        models={name: card.get("max_model_len") for name, card in cards.items()},
        abilities=abilities,
        weight_version=version,
        is_paused=is_paused,
    )
