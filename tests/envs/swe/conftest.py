"""Makes the helpers here importable; fixture `toy_is_studied`."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def toy_is_studied() -> None:
    """Let the canaries of the toy task be studied before a test, whose time they are not."""
    from attacks import toy_repository

    from katgym.sandbox.backends import backend

    async def go() -> None:
        sandboxes = backend("local")
        try:
            await toy_repository.studied_task(sandboxes)
        finally:
            await sandboxes.aclose()

    asyncio.run(go())
