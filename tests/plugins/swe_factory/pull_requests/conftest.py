"""Makes the helpers here importable, and one repository for tests that only read it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pull_repository import PullRepository, one_pull


@pytest.fixture(scope="session")
def sound_pull(tmp_path_factory: pytest.TempPathFactory) -> PullRepository:
    """A repository with pull request 2; others are told of the same clone by `told_otherwise`."""
    return one_pull(tmp_path_factory.mktemp("sound"), labels=[{"name": "chore"}])
