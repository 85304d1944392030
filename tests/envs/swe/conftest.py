"""Makes the helpers here importable; fixture `toy_is_studied`; closes shared sandboxes."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from katgym.sandbox import close_shared_backends, shared_backend

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """The tests of a module share a backend: an interpreter that is warm stays so."""
    yield
    close_shared_backends()


@pytest.fixture(scope="session")
def toy_is_studied() -> None:
    """Let the canaries of the toy task be studied before a test, whose time they are not."""
    from attacks import toy_repository

    asyncio.run(toy_repository.studied_task(shared_backend("local")))
