"""Wall time to a fixed reward beside TRL's GRPOTrainer: same task, model, batch, budget, machine.

    python -m venv ~/trl && ~/trl/bin/pip install trl==1.16.0 datasets  # torch of the same version
    python trainer/benchmarks/peers/grpo_peers.py --trl ~/trl/bin/python --out trainer/benchmarks/peers/grpo_peers.csv

All sides are processes of their own that take turns, seed by seed, with all cores: katgym and TRL
with the same optimizer and learning rate, and katgym with Muon, which TRL has no option for. The
clock of each starts with its first step, after imports and loading; `process_s` has those too. The
reward is that of `sum_task.py`, the mean of three steps. Then a few steps of both with the
same worked examples before each question, as agents have instructions and tools before theirs. Not
here: tools, several turns.
"""  # noqa: E501 - a command

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from katgym.console import stdout

PEERS = Path(__file__).parent
COLUMNS = ("side", "examples", "seed", "steps", "reward_first", "reward_last", "wanted",
           "to_wanted_s", "to_wanted_steps", "step_s", "process_s", "threads")  # fmt: skip


MUON = ("--optimizer", "muon", "--learning-rate", "6e-3")


def run() -> int:
    """Play all sides in turn, write the rows, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trl", required=True, help="python of a venv with TRL")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wanted", type=float, default=0.8, help="mean reward of three steps")
    parser.add_argument("--examples", type=int, default=40, help="before each question")
    parser.add_argument("--example-steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("grpo_peers.csv"))
    args = parser.parse_args()
    ours, theirs = [sys.executable, "katgym_sum.py"], [args.trl, "trl_sum.py"]
    rows = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as model:
            _told([sys.executable, str(PEERS / "sum_model.py"), model, "--seed", str(seed)])
            for examples, steps, sides in (
                (0, args.steps, {"katgym": ours, "trl": theirs, "katgym, muon": [*ours, *MUON]}),
                (args.examples, args.example_steps, {"katgym": ours, "trl": theirs}),
            ):
                for side, (python, script, *more) in sides.items():
                    began = time.perf_counter()
                    told = _told(
                        [python, str(PEERS / script), model, *more, "--steps", str(steps),
                         "--seed", str(seed), "--examples", str(examples)]
                    )  # fmt: skip
                    process_s = time.perf_counter() - began
                    found = _row(told, process_s, args.wanted)
                    rows.append({"side": side, "examples": examples, "seed": seed, **found})
                    stdout.print(rows[-1])
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    _print_medians(rows)
    return 0


def _told(command: Sequence[str]) -> list[dict[str, Any]]:
    """Run a command; return the JSON lines it printed."""
    threads = str(len(os.sched_getaffinity(0)))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": threads},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]


def _row(told: Sequence[dict[str, Any]], process_s: float, wanted: float) -> dict[str, Any]:
    rewards = [line["reward"] for line in told]
    reached = next(
        (i for i in range(2, len(told)) if statistics.mean(rewards[i - 2 : i + 1]) >= wanted), None
    )
    seconds = [line["seconds"] for line in told]
    steps_s = [after - before for before, after in itertools.pairwise(seconds)]
    return {
        "steps": len(told),
        "reward_first": round(rewards[0], 4),
        "reward_last": round(statistics.mean(rewards[-3:]), 4),
        "wanted": wanted,
        "to_wanted_s": "" if reached is None else seconds[reached],
        "to_wanted_steps": "" if reached is None else reached + 1,
        "step_s": round(statistics.median(steps_s), 4),
        "process_s": round(process_s, 2),
        "threads": len(os.sched_getaffinity(0)),
    }


def _print_medians(rows: Sequence[dict[str, Any]]) -> None:
    for side, examples in dict.fromkeys((row["side"], row["examples"]) for row in rows):
        own = [row for row in rows if (row["side"], row["examples"]) == (side, examples)]
        times = [row["to_wanted_s"] for row in own if row["to_wanted_s"] != ""]
        reached = f"{statistics.median(times):.2f} s" if times else "never"
        step_s = statistics.median(row["step_s"] for row in own)
        stdout.print(f"{side}, {examples} examples: {reached} to the reward ({len(times)} of"
                     f" {len(own)} seeds), {step_s:.3f} s a step")  # fmt: skip


if __name__ == "__main__":
    sys.exit(run())
