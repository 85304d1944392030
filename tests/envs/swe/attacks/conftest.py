"""Makes this folder importable as package `attacks`, here and for its neighbours."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
