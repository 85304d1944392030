"""What a small model learns on servers of simulated speed, by placement, staleness and wall time.

    python trainer/benchmarks/cluster/learning.py --out trainer/benchmarks/cluster/learning.csv

Real runs of `katgym train rl` on servers that sleep as GPUs would compute, and sample truly in
addition (`sleeping_servers.py --is-true`); GPUs and cases are those of `placements.py`, and cases
whose old groups play on (`stale = "partial"`). The task: repeat digits that are asked for turn by
turn, some episodes many; envs answer after lognormal times. All begin with one model, imitated from
a teacher that is mostly wrong. Weights are kept every few steps, and play held-out tasks when the
run is over: success is told after equal steps and after equal wall seconds, by the mean of seeds,
with the least and the most. Column `load`: how busy the machine was. Not here: whether predictions
are right (`placements.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import placements
import sleeping_servers as speeds
import torch
from placements import SERVERS, Quiet, SleepingRun, free_ports, server_tables, train_gpus, wait_for
from transformers import AutoModelForCausalLM, AutoTokenizer

import katgym
from katgym.cli.main import main as command
from katgym.console import stdout
from katgym.environment.messages import Message
from katgym.environment.reward import Success
from katgym.play.engine import RolloutEngine
from katgym.plugins.registry import register
from katgym.policies.base import Sampling
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy
from katgym_trainer.config.new_model_config import NewModelConfig
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.models.new_model import new_model
from katgym_trainer.rl.held_out import HeldOut

LENGTH, TURNS, TURNS_SIGMA, ENV_S, ENV_SIGMA = 12, 3.0, 0.6, 0.4, 1.2
TEACHER_IS_RIGHT = 0.4
TRAIN_RATE = 375.0
"""Flat tokens a second of a GPU that trains."""
CASES = [
    *((placement, staleness, "wait") for placement, staleness in placements.CASES),
    *((p, s, "partial") for s in (1, 4) for p in ("disaggregated", "multiplexed")),
]
EVERY = 4
"""Steps between weights that are kept."""
AT_STEPS, AT_SECONDS = (8, 16, 32), (30, 60, 90)
ENV = '[[envs]]\nid = "bench/Repeating-v0"\nnum_tasks = 1024\n'
IMITATION = """
[model]
path = "{folder}/new"
[data.oracle]
envs = ["bench/Repeating-v0?is_mostly_wrong=true"]
num_tasks = 1024
[train]
batch_rollouts = 16
optimizer = "muon"
learning_rate = 8e-3
max_tokens = 8192
num_epochs = 2
"""
CONFIG = """
[model]
path = "{folder}/imitated/model"
{env}
[policy]
uri = "vllm"
max_tokens = 24
max_context_tokens = 2048
{servers}
[rollouts]
num_groups = 4
group_size = 4
max_concurrency = 256
choice = "uniform"
max_staleness = {staleness}
stale = "{stale}"
[train]
num_steps = {steps}
optimizer = "muon"
learning_rate = 1.5e-3
max_tokens = 8192
seed = {seed}
[evaluate]
every_steps = 0
num_tasks = 96
[checkpoint]
every_steps = 1000
"""


class RepeatingEnv(katgym.Env):
    """Asks for a digit, so many times, turn by turn."""

    default_max_turns = 64
    success = Success(threshold=0.9)
    sleeps = False

    def __init__(self, *, is_mostly_wrong: bool = False) -> None:
        super().__init__()
        self.is_mostly_wrong = is_mostly_wrong

    def load_tasks(self, split: str) -> list[katgym.Task]:
        luck = random.Random(split)
        return [
            katgym.Task(task_id=f"{split}-{i}", prompt=f"Say {luck.randrange(10)}")
            for i in range(1024)
        ]

    def opening(self) -> str:
        self.asked, self.shares = self.task.prompt[-1], list[float]()
        self.luck = random.Random(self.task.task_id)
        self.num_wanted = max(1, round(placements.draw(self.luck, TURNS, TURNS_SIGMA)))
        return super().opening()

    async def reply(self, message: Message) -> str | None:
        text = str(message.get("content") or "")
        self.shares.append(text.count(self.asked) / max(LENGTH, len(text)))
        if self.sleeps:
            await asyncio.sleep(placements.draw(random.Random(), ENV_S, ENV_SIGMA))
        self.asked = str(self.luck.randrange(10))
        return f"Say {self.asked}" if len(self.shares) < self.num_wanted else None

    @katgym.scorer()
    def repeated(self) -> float:
        """The mean share of characters that were asked for."""
        return statistics.fmean(self.shares) if self.shares else 0.0

    def oracle_action(self) -> katgym.Action:
        is_wrong = self.is_mostly_wrong and random.random() > TEACHER_IS_RIGHT
        return LENGTH * (str(random.randrange(10)) if is_wrong else self.asked)


class KeepingRun(SleepingRun):
    """Keeps its weights every few steps."""

    snapshots: Path

    def _step(self, groups: Any) -> dict[str, float]:
        metrics = super()._step(groups)
        if self.trainer.num_steps % EVERY == 0:
            file = self.snapshots / f"{self.trainer.num_steps}.pt"
            torch.save(self.loaded.model.state_dict(), file)
        return metrics


def imitate(folder: Path) -> None:
    """Make the model that all runs begin with."""
    if (folder / "imitated/model").is_dir():
        return
    new_model(folder / "new", ["bench/Repeating-v0"], NewModelConfig(hidden=64, layers=2))
    file = folder / "imitation.toml"
    file.write_text(IMITATION.format(folder=folder))
    command(["train", "sft", str(file), "--out", str(folder / "imitated")])


def play(folder: Path, number: int, seed: int, steps: int) -> None:
    """Run a case."""
    placement, staleness, stale = CASES[number]
    run = folder / f"run-{number}-{seed}"
    if (run / "model").is_dir():
        return
    urls = free_ports(len(SERVERS[placement]))
    file = folder / f"rl-{number}-{seed}.toml"
    file.write_text(
        CONFIG.format(
            folder=folder, env=ENV, servers=server_tables(placement, urls), staleness=staleness,
            stale=stale, steps=steps, seed=seed,
        )
    )  # fmt: skip
    model, ports = str(folder / "imitated/model"), [url.rpartition(":")[2] for url in urls]
    started = [sys.executable, speeds.__file__, "--is-true", "--model", model, "--ports", *ports]
    with subprocess.Popen(started) as servers:
        try:
            wait_for(urls)
            KeepingRun.train_rate, KeepingRun.urls = TRAIN_RATE * train_gpus(placement), urls
            KeepingRun.snapshots, RepeatingEnv.sleeps = folder / f"kept-{number}-{seed}", True
            KeepingRun.snapshots.mkdir(exist_ok=True)
            KeepingRun.execute(
                RlConfig.read(file), run, config_text=file.read_text(), observer=Quiet()
            )
        finally:
            servers.kill()


def success(folder: Path, weights: Path | None) -> float:
    """Return how many held-out tasks succeed with kept weights; None: those of the beginning."""
    told = Path(f"{weights}.json") if weights else folder / "imitated/success.json"
    if told.is_file():
        return float(json.loads(told.read_text()))
    path = folder / "imitated/model"
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    if weights is not None:
        model.load_state_dict(torch.load(weights))
    config = RlConfig.read(next(folder.glob("rl-*.toml")))
    policy = HfPolicy(model, AutoTokenizer.from_pretrained(path), name="kept", config=HfConfig())
    player = RolloutEngine(policy, sampling=Sampling(max_tokens=config.policy.max_tokens))
    found = asyncio.run(HeldOut(config).evaluate(player, 0)).success
    told.write_text(json.dumps(found))
    return found


def row(folder: Path, number: int, seeds: int) -> dict[str, Any]:
    """Return a line of the CSV."""
    placement, staleness, stale = CASES[number]
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        text = (folder / f"run-{number}-{seed}/metrics.jsonl").read_text()
        lines: list[Mapping[str, Any]] = [json.loads(line) for line in text.splitlines()]
        kept = folder / f"kept-{number}-{seed}"
        ends_s, at_s = {0: 0.0}, 0.0
        for line in lines:
            at_s += line["time/total_s"]
            if line["step"] % EVERY == 0:
                ends_s[line["step"]] = at_s
        solved = {step: success(folder, kept / f"{step}.pt" if step else None) for step in ends_s}
        told = {
            "steps_per_hour": 3600 * len(lines) / at_s,
            **{f"success_step_{step}": solved[step] for step in AT_STEPS},
            **{f"success_{s}_s": solved[max(step for step, end in ends_s.items() if end <= s)]
               for s in AT_SECONDS},
            "staleness": statistics.fmean(line["rollout/staleness"] for line in lines),
            "too_old": statistics.fmean(line["rollout/too_old"] for line in lines),
            "trainer_idle": 1 - sum(line["bench/train_s"] for line in lines) / at_s,
        }  # fmt: skip
        for name, value in told.items():
            found.setdefault(name, []).append(value)
    told_row: dict[str, Any] = {
        "placement": placement, "max_staleness": staleness, "stale": stale, "seeds": seeds,
    }  # fmt: skip
    for name, values in found.items():
        told_row[name] = round(statistics.fmean(values), 1 if name == "steps_per_hour" else 3)
        if name.startswith("success"):
            told_row[f"{name}_range"] = f"{min(values):.2f}-{max(values):.2f}"
    return {**told_row, "load": round(os.getloadavg()[0], 1)}


def main() -> int:
    """Play what is missing, some runs at a time, each in a process; write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    parser.add_argument("--runs", type=Path, help="folder of the runs; those there are read")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--together", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    register("bench/Repeating-v0", RepeatingEnv, description="Repeats.", should_replace=True)
    folder = args.runs or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    if args.one:
        play(folder, *args.one, args.steps)
        return 0
    imitate(folder)
    numbers = args.only or range(len(CASES))

    def in_process(job: tuple[int, int]) -> None:
        words = [sys.executable, __file__, "--out", str(args.out), "--runs", str(folder),
                   "--steps", str(args.steps), "--one", *map(str, job)]  # fmt: skip
        subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    with ThreadPoolExecutor(args.together) as pool:
        jobs: Sequence[tuple[int, int]] = [(n, seed) for seed in range(args.seeds) for n in numbers]
        list(pool.map(in_process, jobs))
    rows = [row(folder, number, args.seeds) for number in numbers]
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for each in rows:
        stdout.print(each, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
