"""Plays with containers of a real Docker Engine, for the tests here."""

from __future__ import annotations

import asyncio
import contextlib

import docker

from katgym.sandbox.docker_engine.backend import DockerBackend


def containers(**filters: str) -> list[dict]:
    """Return the containers with a label, by the SDK itself."""
    client = docker.from_env()
    try:
        found = []
        for row in client.api.containers(all=True, filters={"label": filters["label"]}):
            with contextlib.suppress(docker.errors.NotFound):  # it went since it was listed
                found.append(client.api.inspect_container(row["Id"]))
        return found
    finally:
        client.close()


def run(work, **options):
    """Run `await work(backend)` with a backend that is closed afterwards."""

    async def main():
        backend = DockerBackend(**options)
        try:
            return await work(backend)
        finally:
            await backend.aclose()

    return asyncio.run(main())
