"""Makes `docker_play` importable; fixtures: the image of a real Docker Engine, a store of layers.

Not here: the engine; `.ci/docker_engine` starts it where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.sandbox import LayerStore

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def docker_image() -> str:
    """Return the id of the test image."""
    known = os.environ.get("KATGYM_DOCKER_IMAGE")
    if known:
        return known
    script = ROOT / ".ci" / "docker_engine"
    return subprocess.run(
        [str(script)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")
