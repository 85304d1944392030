"""Makes the helpers here and the benchmarks importable; has Ray wait for a busy machine."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for name, limit in {
    "raylet_start_wait_time_s": 600,
    "worker_register_timeout_seconds": 600,
    "gcs_rpc_server_connect_timeout_s": 120,
    "gcs_server_request_timeout_seconds": 600,
}.items():
    os.environ.setdefault(f"RAY_{name}", str(limit))

sys.path[:0] = [
    str(Path(__file__).parent),
    str(ROOT / "kernels/benchmarks"),
    str(ROOT / "trainer/benchmarks"),
]
