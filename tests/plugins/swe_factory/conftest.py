"""Makes the helpers of the env's tests importable for the tests here."""

import sys
from pathlib import Path

_ENV_TESTS = Path(__file__).parents[2] / "envs" / "swe"
sys.path[:0] = [str(_ENV_TESTS), str(_ENV_TESTS / "canaries")]
