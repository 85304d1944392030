"""Makes `forests` importable for the tests here, and kernels run without a GPU."""

import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are imported

sys.path.insert(0, str(Path(__file__).parent))
