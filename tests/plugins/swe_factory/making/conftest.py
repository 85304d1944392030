"""Makes the helpers here importable, and one set for all of the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from toy_set import make_toy_set


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with six tasks."""
    folder = tmp_path_factory.mktemp("sets") / "toy"
    done = make_toy_set(folder, 6)
    assert done.returncode == 0, done.stderr
    return folder
