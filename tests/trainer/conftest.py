"""Makes the helpers here and the benchmarks importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(Path(__file__).parent),
    str(ROOT / "kernels/benchmarks"),
    str(ROOT / "trainer/benchmarks"),
]
