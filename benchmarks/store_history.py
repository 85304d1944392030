"""What a training run pays for how much was ever played: polls, starts and checkpoints by sessions.

Stores of 1,000 to 100,000 sessions in groups of 8, live or sealed, that a run has trained on; its
own record of them is the same. `upgrade` is the first opening of a store of the version before.

    python benchmarks/store_history.py > store_history.csv          # 6 minutes, 0.7 GB in --folder
    PYTHONPATH=OLD:OLD/trainer python benchmarks/store_history.py   # the same of an older checkout
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import katgym
from katgym.environment.messages import assistant, user
from katgym.environment.reward import Reward
from katgym.play.rollout import Rollout, Turn
from katgym.policies.base import TokenRecord
from katgym.policies.version_span import one_span
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.rollouts import as_session
from katgym_trainer.config.rl_config import RolloutsConfig
from katgym_trainer.rl.kept_rollouts import KeptRollouts
from katgym_trainer.rl.store_stream import StoreStream

GROUP_SIZE, GROUPS_OF_A_STEP = 8, 8
COLUMNS = ("metric", "unit", "sessions", "kind", "repeats", "p20", "p50", "p80", "device", "load",
           "python", "commit")  # fmt: skip


def rollout(number: int) -> Rollout:
    """Make a rollout of one turn."""
    tokens = TokenRecord(prompt_ids=list(range(100)), completion_ids=list(range(20)),
                         policy_logprobs=[-0.5] * 20, version_spans=one_span(0, 20))  # fmt: skip
    turn = Turn(messages=[user("find it" * 20)], answer=assistant("here" * 20), tokens=tokens,
                num_prompt_tokens=100, num_completion_tokens=20)  # fmt: skip
    return Rollout(
        env_id="katgym/Arithmetic-v1", plugin_version="1", seat="player", task_id="t",
        task_sha256="0" * 64, split="train", seed=0, policy="p",
        episode_id="e", status=katgym.RolloutStatus.TERMINATED, reward=Reward(value=1.0),
        turns=[turn], wall_s=1.0, attempt=number, final_messages=[],
    )  # fmt: skip


def build(folder: Path, num: int, *, is_sealed: bool) -> None:
    """Write what others played, and a run's record of having trained on it."""
    made = [rollout(number) for number in range(GROUP_SIZE)]
    for name in ("store", "run/rollouts"):
        with RolloutStore.open(folder / name) as store:
            for low in range(0, num, 1000):
                sessions = []
                for i in range(low, min(num, low + 1000)):
                    group, place = divmod(i, GROUP_SIZE)
                    step, is_own = 1 + group // GROUPS_OF_A_STEP, name != "store"
                    draw = {"number": group, "env": 0, "lesson": 0, "task_id": f"g{group}"}
                    own = {"step": step, "draw": {**draw, "seed": 0}, "begun_version": 0}
                    sessions.append(as_session(
                        dataclasses.replace(made[place], episode_id=f"e{i}"),
                        group_id=f"step-{step:06d}-group-{group:06d}" if is_own else f"g{group}",
                        metadata={"group_size": GROUP_SIZE, **(own if is_own else {})},
                        ended_s=1e9 + i,
                    ))  # fmt: skip
                store.add_sessions(sessions)
            if is_sealed:
                store.seal()


def seconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Time calls."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def measure(folder: Path, num: int, repeats: int) -> dict[str, tuple[str, list[float]]]:
    """Start as a run does after its last step, then poll, then tell the checkpoint."""
    config = RolloutsConfig(store=str(folder / "store"), group_size=GROUP_SIZE, num_groups=1)
    last = num // GROUP_SIZE // GROUPS_OF_A_STEP
    upgrade = seconds(lambda: RolloutStore.open(folder / "store").close(), 1)
    upgrade[0] += seconds(lambda: RolloutStore.open(folder / "run/rollouts").close(), 1)[0]
    first = StoreStream(config, temperature=1.0)
    first.load_state_dict({"seen": [f"g{i}" for i in range(-(-num // GROUP_SIZE))],
                           "seen_held_out": [], "num_taken": num // GROUP_SIZE})  # fmt: skip
    assert first._new(1) == []
    state = json.dumps(first.state_dict())
    streams = []

    def start() -> None:
        kept = KeptRollouts(folder / "run", advantage="grpo", shaping=lambda rollout: 0.0)
        assert kept.after(last) is not None and kept.last_step() >= last
        kept.close()
        stream = StoreStream(config, temperature=1.0)
        stream.load_state_dict(json.loads(state))
        assert stream._new(1) == []
        streams.append(stream)

    return {
        "upgrade": ("s", upgrade),
        "start": ("s", seconds(start, 1 if num > 10_000 else 3)),
        "poll": ("ms", [s * 1e3 for s in seconds(lambda: streams[-1]._new(1), repeats)]),
        "checkpoint": ("bytes", [float(len(state))]),
    }


def main() -> None:
    """Build, measure and print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep the stores here")
    parser.add_argument("--sessions", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--build-only", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    root = Path(katgym.__file__).parents[1]
    commit = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    for num in args.sessions:
        for kind in ("live", "sealed"):
            if not (where := folder / f"{kind}-{num}").exists():
                build(where, num, is_sealed=kind == "sealed")
            for metric, (unit, values) in (
                {} if args.build_only else measure(where, num, 21).items()
            ):
                cuts = [values[0]] * 9
                if len(values) > 1:
                    cuts = statistics.quantiles(values, n=10, method="inclusive")
                row = {"metric": metric, "unit": unit, "sessions": num, "kind": kind}
                row |= {f"p{10 * (i + 1)}": round(cuts[i], 3) for i in (1, 4, 7)}
                row |= {"load": round(os.getloadavg()[0], 2), "python": platform.python_version()}
                row |= {"device": f"{platform.machine()} {os.cpu_count()} cores", "commit": commit}
                out.writerow({**row, "repeats": len(values)})
            sys.stdout.flush()


if __name__ == "__main__":
    main()
