"""Runs on servers of simulated speed, by placement and staleness, beside what the plan predicts.

    python trainer/benchmarks/cluster/placements.py --out trainer/benchmarks/cluster/placements.csv

Real runs of `katgym train rl`: servers sleep as GPUs would compute (`sleeping_servers.py`), a step
takes as long as its flat tokens on a GPU would, envs answer after lognormal times. Four GPUs:
colocated they all sample, and sleep in steps; disaggregated two sample and two train; multiplexed
two sample and the two that train sample in between. Each row has what was measured, and what
`katgym cluster plan` predicts from the same speeds and draws; the time of a sync and the tokens of
a turn are taken from the row's run. Column `load`: how busy the machine was. Not here: larger
clusters (`scale.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import dataclasses
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sleeping_servers as speeds

import katgym
from katgym.console import stdout
from katgym.environment.messages import Message
from katgym.plugins.registry import register
from katgym_trainer.cluster_plan.assumptions import Assumptions
from katgym_trainer.cluster_plan.prediction import Prediction
from katgym_trainer.cluster_plan.scenario import Scenario
from katgym_trainer.config.new_model_config import NewModelConfig
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.models.new_model import new_model
from katgym_trainer.rl.rl_run import RlRun

NUM_GPUS, GROUP_SIZE = 4, 4
TURNS, TURNS_SIGMA, ENV_S, ENV_SIGMA = 4.0, 0.6, 0.6, 1.2
OBSERVATION = "x" * 40
TRAIN_RATE = 450.0
"""Flat tokens a second of a GPU that trains."""
SERVERS = {
    "colocated": ("shared",) * 4,
    "disaggregated": ("apart",) * 2,
    "multiplexed": ("apart",) * 2 + ("shared",) * 2,
}
TAGS = {"shared": '["rollout", "train"]', "apart": '["rollout"]'}
CASES = [("colocated", 0), ("disaggregated", 0),
         *((p, s) for s in (1, 2, 4, 8) for p in ("disaggregated", "multiplexed"))]  # fmt: skip
CONFIG = """
[model]
path = "{model}"
[[envs]]
id = "bench/Waiting-v0"
[policy]
uri = "vllm"
max_tokens = 200
max_context_tokens = 8192
{servers}
[rollouts]
num_groups = 4
group_size = {group_size}
max_concurrency = 256
choice = "uniform"
max_staleness = {staleness}
[train]
num_steps = {steps}
learning_rate = 1e-9
max_tokens = 8192
[checkpoint]
every_steps = 1000
"""


class WaitingEnv(katgym.Env):
    """Answers after a while, some turns long; pays at random."""

    default_max_turns = 64
    num_begun = 0

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-{i}", prompt="y" * 60) for i in range(64)]

    def opening(self) -> str:
        # What the simulation draws for the same rollout of the same group.
        self.luck = random.Random(
            7919 * (self.num_begun // GROUP_SIZE * 4096 + self.num_begun % GROUP_SIZE)
        )
        WaitingEnv.num_begun += 1
        self.num_wanted = max(1, round(draw(self.luck, TURNS, TURNS_SIGMA)))
        return super().opening()

    async def reply(self, message: Message) -> str | None:
        self.luck.gauss(0, 1)  # the answer's length, which servers draw
        await asyncio.sleep(draw(self.luck, ENV_S, ENV_SIGMA))
        return OBSERVATION if self.num_turns < self.num_wanted else None

    @katgym.scorer()
    def noise(self) -> float:
        """Something else for every rollout."""
        return random.random()


def draw(luck: random.Random, mean: float, sigma: float) -> float:
    return mean * math.exp(luck.gauss(0, sigma) - sigma**2 / 2)


class SleepingRun(RlRun):
    """Takes as long for a step as its GPUs would."""

    train_rate = 0.0
    urls: Sequence[str] = ()

    def _feed(self, *given: Any) -> Any:
        WaitingEnv.num_begun = 0  # others were begun to look at their prompts
        return super()._feed(*given)

    def _step(self, groups: Any) -> dict[str, float]:
        self.seen: list[dict[str, float]] = getattr(self, "seen", [])
        began = time.perf_counter()
        metrics = super()._step(groups)
        gpu_s = metrics.get("train/num_flat_tokens", 0.0) / self.train_rate
        own_s = time.perf_counter() - began
        time.sleep(max(0.0, gpu_s - own_s))
        busy = [json.load(urllib.request.urlopen(f"{url}/busy")) for url in self.urls]
        metrics["bench/train_s"] = max(gpu_s, own_s)
        metrics["bench/own_s"] = own_s
        metrics["bench/busy_s"] = sum(each["busy_s"] for each in busy)
        metrics["bench/num_turns"] = sum(len(r.turns) for g in groups for r in g.rollouts)
        first = [r.turns[0].tokens for g in groups for r in g.rollouts]
        metrics["bench/prompt"] = statistics.fmean(len(t.prompt_ids) for t in first if t)
        return metrics


class Quiet:
    """Observes a run and says nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """Say nothing."""


def server_tables(placement: str, urls: Sequence[str]) -> str:
    """Return a file's sections [[policy.servers]]."""
    return "\n".join(
        f'[[policy.servers]]\nurl = "{url}#{speeds.NAME}"\ntags = {TAGS[kind]}'
        for kind, url in zip(SERVERS[placement], urls, strict=True)
    )


def write_config(folder: Path, number: int, steps: int, urls: Sequence[str]) -> Path:
    """Write a case's file."""
    placement, staleness = CASES[number]
    text = CONFIG.format(
        model=folder / "model",
        servers=server_tables(placement, urls),
        staleness=staleness,
        steps=steps,
        group_size=GROUP_SIZE,
    )
    path = folder / f"rl-{number}.toml"
    path.write_text(text)
    return path


def train_gpus(placement: str) -> int:
    """Return how many GPUs train."""
    return NUM_GPUS if placement == "colocated" else NUM_GPUS // 2


def play(folder: Path, number: int, steps: int) -> RlConfig:
    """Run a case, unless that is done, and return its file."""
    placement, _ = CASES[number]
    urls = free_ports(len(SERVERS[placement]))
    file, path = write_config(folder, number, steps, urls), folder / f"run-{number}"
    config = RlConfig.read(file)
    if (path / "model").is_dir():
        return config
    model, ports = str(folder / "model"), [url.rpartition(":")[2] for url in urls]
    command = [sys.executable, speeds.__file__, "--model", model, "--ports", *ports]
    with subprocess.Popen(command) as servers:
        try:
            wait_for(urls)
            SleepingRun.train_rate, SleepingRun.urls = TRAIN_RATE * train_gpus(placement), urls
            SleepingRun.execute(config, path, config_text=file.read_text(), observer=Quiet())
        finally:
            servers.kill()
    return config


def predict(config: RlConfig, placement: str, lines: Sequence[Mapping[str, Any]]) -> Prediction:
    """Return what is predicted of the same run."""

    def mean(name: str) -> float:
        return statistics.fmean(line[name] for line in lines[len(lines) // 3 :])

    num = config.rollouts.num_groups * config.rollouts.group_size
    turns = mean("bench/num_turns") / num
    flat = mean("train/num_flat_tokens") / num
    prompt = round(mean("bench/prompt"))
    observation = (flat - prompt - turns * speeds.ANSWER_TOKENS) / turns
    scenario = Scenario.of(config, Assumptions(
        turns=TURNS, turns_sigma=TURNS_SIGMA, prompt_tokens=prompt, env_s=ENV_S,
        env_sigma=ENV_SIGMA, grade_s=0, answer_tokens=speeds.ANSWER_TOKENS,
        answer_sigma=speeds.ANSWER_SIGMA, observation_tokens=observation, shared_prefix=0,
        train_gpus=train_gpus(placement), train_rate=TRAIN_RATE, step_s=0,
        decode_one=1 / (speeds.ROUND_S + speeds.SEQUENCE_S), decode_many=1 / speeds.SEQUENCE_S,
        prefill_rate=speeds.PREFILL, sleep_s=speeds.SLEEP_S, steps=len(lines),
        read_rate=1.0, write_rate=1e12, probe_s=max(0.0, mean("time/sync_s") - speeds.READ_S),
    ))  # fmt: skip
    scenario = dataclasses.replace(scenario, sync_bytes=speeds.READ_S)
    return Prediction.of(scenario)


def row(
    placement: str, staleness: int, lines: Sequence[Mapping[str, Any]], found: Prediction
) -> dict[str, Any]:
    """Return a line of the CSV."""
    warm = lines[len(lines) // 3 :]
    wall_s = sum(line["time/total_s"] for line in warm)
    busy_s = warm[-1]["bench/busy_s"] - lines[len(lines) // 3 - 1]["bench/busy_s"]
    per_hour = 3600 * len(warm) / wall_s
    return {
        "placement": placement,
        "max_staleness": staleness,
        "steps_per_hour": round(per_hour, 1),
        "predicted": round(found.steps_per_hour, 1),
        "error": round(found.steps_per_hour / per_hour - 1, 3),
        "trainer_idle": round(1 - sum(line["bench/train_s"] for line in warm) / wall_s, 3),
        "predicted_trainer_idle": round(1 - found.trainers_busy, 3),
        "sampler_idle": round(1 - busy_s / len(SERVERS[placement]) / wall_s, 3),
        "predicted_sampler_idle": round(1 - found.samplers_busy, 3),
        "staleness": round(statistics.fmean(line["rollout/staleness"] for line in warm), 2),
        "predicted_staleness": round(found.staleness, 2),
        "sync_s": round(statistics.median(line["time/sync_s"] for line in warm), 2),
        "own_step_s": round(statistics.median(line["bench/own_s"] for line in warm), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def run() -> int:
    """Measure all cases, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    parser.add_argument(
        "--runs", type=Path, help="folder of the runs; those that are there are read"
    )
    parser.add_argument("--steps", type=int, default=12, help="of a run; a third is left out")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    args = parser.parse_args()
    register("bench/Waiting-v0", WaitingEnv, description="Waits.", should_replace=True)
    folder = args.runs or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    model = folder / "model"
    if not model.is_dir():
        new_model(
            model, ["katgym/TreasureHunt-v1"], NewModelConfig(hidden=64, layers=1, num_tasks=8)
        )
    rows = []
    for number, (placement, staleness) in enumerate(CASES):
        if args.only and number not in args.only:
            continue
        config = play(folder, number, args.steps)
        journal = (folder / f"run-{number}/metrics.jsonl").read_text()
        lines = [json.loads(line) for line in journal.splitlines()]
        found = predict(config, placement, lines)
        rows.append(row(placement, staleness, lines, found))
        stdout.print(rows[-1], soft_wrap=True)
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def free_ports(num: int) -> list[str]:
    """Return URLs of this machine where nobody listens."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(num)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [f"http://127.0.0.1:{each.getsockname()[1]}" for each in found]


def wait_for(urls: Sequence[str]) -> None:
    """Wait until servers answer."""
    for url in urls:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/busy").close()
                break
            except OSError:
                time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(run())
