"""Makes the helpers here importable; an empty store."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from katgym.rollout_store import RolloutStore

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RolloutStore]:
    with RolloutStore.open(tmp_path / "store") as opened:
        yield opened
