"""Makes the helpers here importable; a random model to train, which no test changes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model and its tokenizer."""
    from rl_play import save_model

    return save_model(tmp_path_factory.mktemp("model") / "tiny")
