"""Predictions of an agentic run on 8 to 4,096 GPUs, and what rules for its tail are worth.

    python trainer/benchmarks/cluster/scale.py --out trainer/benchmarks/cluster/scale.csv

32 B dense on H100s by their data sheet, 16 rollouts a GPU and step, 20 turns and 30k tokens on
average, envs of 6 s a turn with a long tail (`Assumptions`); no GPU ran any of it. Servers have two
GPUs. The share that trains is each of some; of more than 16 GPUs the one of the best throughput on
16, for each placement, staleness and rule. Rules: old groups are waited for or `partial` (`stale`);
"freeze": requests of servers that go to sleep are not handed over. `control`: "one" process each
for the agent loop, rows and store, or "sharded", one of each for 16 GPUs: with one of each 4,096
GPUs are held up by these alone, so that placements and rules that leave trainers waiting for groups
elsewhere are alike there. One seed. `speedup` is over taking turns (colocated) on as many GPUs with
the same control. Not here: what was run (`placements.py`).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from katgym.console import stdout
from katgym_trainer.cluster_plan.assumptions import Assumptions
from katgym_trainer.cluster_plan.model_server import ServerRates
from katgym_trainer.cluster_plan.prediction import Prediction
from katgym_trainer.cluster_plan.scenario import Scenario
from katgym_trainer.config.rl_config import (
    EnvConfig,
    PolicyConfig,
    RlConfig,
    RolloutsConfig,
    StaleGroups,
)  # fmt: skip
from katgym_trainer.config.run_config import ModelConfig

GPUS, SIMULATED = (8, 64, 512, 4096), 16
SHARES = (0.25, 0.375, 0.5)
SEEDS = 1


def cases() -> Iterator[tuple[str, int, str]]:
    """Yield placement, staleness and rule."""
    yield "colocated", 0, "wait"
    for staleness in (2, 4, 8):
        yield "disaggregated", staleness, "wait"
        yield "multiplexed", staleness, "wait"
    yield from (("multiplexed", 4, "freeze"), ("disaggregated", 4, "partial"))
    yield "multiplexed", 4, "partial"


def scenario(placement: str, staleness: int, rule: str, gpus: int, share: float, control: str,
             seed: int) -> Scenario:  # fmt: skip
    """Return a run on so many GPUs; of more than 16 one of alike parts."""
    assumed = Assumptions(weights=32e9, gpus_per_server=2, seed=seed, hand_over=rule != "freeze")
    num_parts = max(1, gpus // SIMULATED)
    if control == "sharded":  # one of each process for a part, side by side
        costs = ("rows_token_s", "store_turn_s")
        less = {name: getattr(assumed, name) / num_parts for name in costs}
        assumed = dataclasses.replace(assumed, loops=num_parts, gateways=num_parts, **less)
    part = gpus // num_parts
    whole = RlConfig(
        model=ModelConfig(path=""),
        envs=(EnvConfig(id="katgym/TreasureHunt-v1"),),
        policy=PolicyConfig(uri="vllm", max_tokens=4096, max_context_tokens=131_072),
        rollouts=RolloutsConfig(num_groups=part, group_size=16, max_concurrency=10**6,
                                max_staleness=staleness,
                                stale=StaleGroups.PARTIAL if rule == "partial"
                                else StaleGroups.WAIT),
        trainer={"max_tokens": 131_072},
    )  # fmt: skip
    one = Scenario.of(whole, assumed)
    rates: ServerRates = one.servers[0]
    num_train = part if placement == "colocated" else round(part * share / 2) * 2
    shared = dataclasses.replace(rates, is_shared=True)
    apart = [rates] * ((part - num_train) // 2)
    return dataclasses.replace(
        one,
        servers=[*apart, *[shared] * (num_train // 2 if placement != "disaggregated" else 0)],
        train_gpus=num_train,
        train_rate=one.train_rate * num_train,
        num_parts=num_parts,
    )


@functools.cache
def predict(*case: Any) -> dict[str, float]:
    """Return the means over seeds."""
    found = [dataclasses.asdict(Prediction.of(scenario(*case, seed))) for seed in range(SEEDS)]
    names = [name for name, value in found[0].items() if not isinstance(value, str)]
    return {name: statistics.fmean(each[name] for each in found) for name in names}


def shares(placement: str, staleness: int, rule: str, gpus: int) -> Sequence[float]:
    """Return the shares of GPUs to train on: all, or of many GPUs the one that trains most."""
    if placement == "colocated":
        return (1.0,)
    if gpus <= SIMULATED:
        return SHARES if gpus > 8 else SHARES[::2]  # a server has two

    def rate(share: float) -> float:
        return predict(placement, staleness, rule, SIMULATED, share, "one")["rollouts_per_hour"]

    return (max(SHARES, key=rate),)


def run() -> int:
    """Simulate, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    parser.add_argument("--gpus", type=int, nargs="*", default=GPUS)
    args = parser.parse_args()
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(git, cwd=Path(__file__).parent, text=True).strip()
    rows: list[dict[str, Any]] = []
    turns: dict[tuple[int, str], float] = {}
    for gpus in args.gpus:
        for control in ("one", "sharded") if gpus > SIMULATED else ("one",):
            tried = [(*case, share) for case in cases() for share in shares(*case, gpus)]
            for placement, staleness, rule, share in tried:
                found = predict(placement, staleness, rule, gpus, share, control)
                rate = found["rollouts_per_hour"]
                turns.setdefault((gpus, control), rate)
                rows.append(
                    {
                        "gpus": gpus, "control": control, "placement": placement,
                        "max_staleness": staleness, "rule": rule, "train_share": share,
                        "rollouts_per_hour": round(rate, 1),
                        "speedup": round(rate / turns[gpus, control], 2),
                        "gpus_idle": round(1 - found["gpus_busy"], 3),
                        "trainers_busy": round(found["trainers_busy"], 3),
                        "samplers_busy": round(found["samplers_busy"], 3),
                        "staleness": round(found["staleness"], 2),
                        "too_old": round(found["too_old"], 3),
                        "packing": round(found["packing"], 3),
                        "store": round(found["store"], 3),
                        "agent_loop": round(found["agent_loop"], 3), "commit": commit,
                    }
                )  # fmt: skip
                stdout.print(rows[-1], soft_wrap=True)
            write(args.out, rows)
    return 0


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows that there are."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(run())
