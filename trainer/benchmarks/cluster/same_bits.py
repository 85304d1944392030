"""Runs of `katgym train rl` on two ranks, one of which is killed: are they the undisturbed run's?

    python trainer/benchmarks/cluster/same_bits.py --repeats 3     # to same_bits.csv; ten minutes

An undisturbed run is taken once; then, so many times, one whose second rank is killed with SIGKILL
at a random step, and which the same command goes on with. Metrics of every step but times, and the
model, are compared bit for bit. The first rank plays, in float32 on this CPU; the model is the
tests'. Not here: kills of all kinds of places (`gang_kills.py`).
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CSV = Path(__file__).with_suffix(".csv")
PATHS = [str(ROOT / "tests" / p) for p in ("shared", "trainer", "trainer/rl", "trainer/ranks")]
SCRIPT = "rl_process.py"


def play(config: Path, out: Path, num_steps: int, *, kill_at: int | None = None) -> int:
    """Take a run to its end, or to where a rank is killed; return the steps it has."""
    from started_ranks import metrics, start_each

    told = ("train", "rl", str(config), "--out", str(out), "--steps", str(num_steps))
    ranks = start_each(2, SCRIPT, *told)
    file = out / "metrics.jsonl"
    while kill_at is not None and (not file.exists() or len(metrics(out)) < kill_at):
        assert ranks[0].poll() is None, ranks[0].communicate()[1]
        time.sleep(0.02)
    if kill_at is not None:
        ranks[1].kill()
    for rank in ranks:
        _, said = rank.communicate(timeout=600)
        assert kill_at is not None or rank.returncode == 0, said
    return len(metrics(out))


def measure(repeats: int, num_steps: int, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each killed run."""
    from rl_play import config_text, register_env, save_model
    from started_ranks import assert_equal

    register_env()
    config, rng = folder / "rl.toml", random.Random(seed)
    config.write_text(config_text(save_model(folder / "tiny"), steps=num_steps))
    play(config, folder / "undisturbed", num_steps)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    for number in range(repeats):
        out = folder / f"killed-{number}"
        killed = play(config, out, num_steps, kill_at=rng.randint(2, num_steps - 3))
        play(config, out, num_steps)
        try:
            assert_equal(out, folder / "undisturbed")
            is_equal = True
        except AssertionError as e:
            print(e)
            is_equal = False
        yield {
            "steps": num_steps, "killed_after": killed, "is_equal": is_equal, "seed": seed,
            "load": round(os.getloadavg()[0], 1), "commit": commit,
        }  # fmt: skip


def main() -> None:
    """Measure and append the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path[:0] = PATHS
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, sys.path)])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        for row in measure(args.repeats, args.steps, args.seed, Path(made)):
            print(row, flush=True)
            is_new = not CSV.exists()
            with CSV.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
