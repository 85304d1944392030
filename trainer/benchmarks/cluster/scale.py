"""Predictions of an agentic run on 8 to 4,096 GPUs, and what rules for its tail are worth.

    python trainer/benchmarks/cluster/scale.py --out trainer/benchmarks/cluster/scale.csv

32 B dense on H100s by their data sheet, 16 rollouts a GPU and step, 20 turns and 30k tokens on
average, envs of 6 s a turn with a long tail (`Assumptions`); no GPU ran any of it. Servers have two
GPUs. The share that trains is the best of some, chosen on 16 GPUs by throughput, for each
placement, staleness and rule. Rules: requests of servers that go to sleep "freeze", or "as it is",
are handed over; `partial` groups (`stale`); and `overflow`, as `Assumptions` says.
`control`: "one" process each for the agent loop, rows and store, or "sharded", one of each for 16
GPUs. One seed. `speedup` is over taking turns (colocated) on as many GPUs with the same
control. Not here: what was run (`placements.py`).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
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

GPUS, CHOSEN_ON, SIMULATED = (8, 64, 512, 4096), 16, 16
SHARES = (0.25, 0.375, 0.5)
RULES: dict[str, dict[str, bool]] = {
    "freeze": {"hand_over": False},
    "as it is": {},
    "overflow": {"overflow": True},
    "partial": {},
    "overflow, partial": {"overflow": True},
}
SEEDS = 1


def cases() -> Iterator[tuple[str, int, str]]:
    """Yield placement, staleness and rule."""
    yield "colocated", 0, "as it is"
    for staleness in (2, 4, 8):
        yield "disaggregated", staleness, "as it is"
        yield "multiplexed", staleness, "as it is"
    yield from (("multiplexed", 4, rule) for rule in RULES if rule != "as it is")


def scenario(placement: str, staleness: int, rule: str, gpus: int, share: float, control: str,
             seed: int) -> Scenario:  # fmt: skip
    """Return a run on so many GPUs; of more than 16 one of alike parts."""
    assumed = Assumptions(weights=32e9, gpus_per_server=2, seed=seed,
                          **RULES[rule])  # fmt: skip
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
                                stale=StaleGroups.PARTIAL if "partial" in rule
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


def predict(*case: Any) -> dict[str, float]:
    """Return the means over seeds."""
    found = [dataclasses.asdict(Prediction.of(scenario(*case, seed))) for seed in range(SEEDS)]
    names = [name for name, value in found[0].items() if not isinstance(value, str)]
    return {name: statistics.fmean(each[name] for each in found) for name in names}


def best_share(placement: str, staleness: int, rule: str) -> float:
    """Return the share of GPUs to train on with which most rollouts are trained on."""
    if placement == "colocated":
        return 1.0

    def rate(share: float) -> float:
        return predict(placement, staleness, rule, CHOSEN_ON, share, "one")["rollouts_per_hour"]

    return max(SHARES, key=rate)


def run() -> int:
    """Simulate, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    parser.add_argument("--gpus", type=int, nargs="*", default=GPUS)
    args = parser.parse_args()
    shares = {case: best_share(*case) for case in cases()}
    rows: list[dict[str, Any]] = []
    turns: dict[tuple[int, str], float] = {}
    for gpus in args.gpus:
        for control in ("one", "sharded") if gpus > SIMULATED else ("one",):
            for (placement, staleness, rule), share in shares.items():
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
                        "agent_loop": round(found["agent_loop"], 3),
                    }
                )  # fmt: skip
                stdout.print(rows[-1], markup=False, soft_wrap=True)
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
