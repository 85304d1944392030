"""Two and four gloo ranks compute what one process does, for every loss and way of training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from katgym_trainer import LOSSES

CASES = Path(__file__).parent / "rank_cases.py"


@pytest.mark.slow  # 2 minutes: six Pythons with torch and transformers
def test_two_and_then_four_ranks_compute_what_one_process_does(tmp_path: Path) -> None:
    for num_ranks in (2, 4):  # four read the checkpoints of two
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", str(num_ranks), str(CASES), str(tmp_path)],
            capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads((tmp_path / "found.json").read_text())
        assert len(found) == 2 * len(LOSSES) + 44
        halves = [found.pop(name) for name in list(found) if "halves" in name]
        assert {name: error for name, error in found.items() if not isinstance(error, float)} == {}
        assert {name: error for name, error in found.items() if error > 5e-6} == {}
        # bfloat16 rounds other sums, as it does between two budgets of one process.
        assert max(halves) < 0.06
