"""Makes the modules beside the tests importable, also for the processes that checks start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
