"""Makes `forests` and the benchmarks importable for the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
