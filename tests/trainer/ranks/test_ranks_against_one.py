"""Two and four gloo ranks compute what one process does, for every loss and way of training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "rank_cases.py"


@pytest.mark.slow  # 1 minute: as many Pythons as ranks, each with torch and transformers
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_compute_what_one_process_does(num_ranks: int, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run(
        [*torchrun, "--standalone", str(CASES), str(tmp_path)],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) >= 33
    halves = found.pop("trainer halves")
    assert {name: error for name, error in found.items() if not isinstance(error, float)} == {}
    assert {name: error for name, error in found.items() if error > 5e-6} == {}
    # bfloat16 rounds other sums, as it does between two budgets of one process.
    assert halves < 0.06
