"""What has to be so before anything is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported
