"""The suite that every sandbox backend passes, against containers."""

from __future__ import annotations

import asyncio

import pytest

from katgym.sandbox.conformance import CHECKS, ConformanceCheck, run_check
from katgym.sandbox.docker_engine.backend import DockerBackend

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_docker_conforms(check: ConformanceCheck, docker_image: str, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def main() -> None:
        backend = DockerBackend(image=docker_image)
        try:
            await run_check(check, backend)
        finally:
            await backend.aclose()

    asyncio.run(main())
