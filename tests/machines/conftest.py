"""Makes helpers of other tests importable; three machines that share a folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = ("machines", "trainer", "trainer/rl", "trainer/ranks")
sys.path[:0] = [str(TESTS / folder) for folder in FOLDERS]

from machines import Machines, three_machines  # noqa: E402


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with three_machines(tmp_path) as made:
        yield made
