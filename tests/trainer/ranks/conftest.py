"""Makes the helpers here and those of reinforcement learning importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "rl")]
