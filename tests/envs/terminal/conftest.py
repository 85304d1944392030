"""Makes the helpers here importable; sandboxes end with each module."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from katgym.sandbox import close_shared_backends

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_shared_backends()
