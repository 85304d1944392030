"""katgym learns the sums by `katgym train rl`; prints a JSON line for each step.

python trainer/benchmarks/peers/katgym_sum.py MODEL --steps 20 --seed 0
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from sum_task import GROUP_SIZE, LEARNING_RATE, MAX_TOKENS, NUM_GROUPS, NUM_TASKS, reward, tasks

import katgym
from katgym.cli.main import main as command
from katgym.plugins.registry import register

CONFIG = f"""
[model]
path = "{{model}}"
[[envs]]
id = "bench/Sum-v0?num_examples={{examples}}"
num_tasks = {NUM_TASKS}
[policy]
max_tokens = {MAX_TOKENS}
max_context_tokens = {{context}}
[rollouts]
num_groups = {NUM_GROUPS}
group_size = {GROUP_SIZE}
max_concurrency = {NUM_GROUPS * GROUP_SIZE}
choice = "uniform"
[train]
num_steps = {{steps}}
optimizer = "{{optimizer}}"
learning_rate = {{learning_rate}}
max_tokens = 32768
seed = {{seed}}
[checkpoint]
every_steps = 1000
"""


class SumEnv(katgym.Env):
    """One question, one answer."""

    def __init__(self, num_examples: int = 0) -> None:
        super().__init__()
        self.num_examples = num_examples

    def load_tasks(self, split: str) -> list[katgym.Task]:
        """Return the tasks."""
        return [
            katgym.Task(task_id=f"{split}-{i}", prompt=prompt, answer=answer)
            for i, (prompt, answer) in enumerate(tasks(self.num_examples))
        ]

    @katgym.scorer()
    def right(self) -> float:
        """What the peer is paid."""
        return reward(self.final_answer, self.task.answer)

    def oracle_action(self) -> katgym.Action:
        """Say it."""
        return str(self.task.answer)


def main() -> int:
    """Train, then tell the steps from the run's own clock."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    args = parser.parse_args()
    register("bench/Sum-v0", SumEnv)
    with tempfile.TemporaryDirectory() as folder:
        config, run = Path(folder) / "rl.toml", Path(folder) / "run"
        config.write_text(CONFIG.format(**vars(args), context=256 + 16 * args.examples))
        code = command(["train", "rl", str(config), "--out", str(run)])
        seconds = 0.0
        for text in (run / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text)
            seconds += line["time/total_s"]
            told = {"step": line["step"], "seconds": round(seconds, 3)}
            print(json.dumps({**told, "reward": line["rollout/reward"]}), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
