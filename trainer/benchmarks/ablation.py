"""What each part of the learner changes: reinforcement learning of a small task, part by part.

    python trainer/benchmarks/ablation.py --out trainer/benchmarks/ablation.csv

A model of 0.1 M parameters learns sums of two numbers below 50, three tokens an answer, rewarded if
right. It starts from weights that imitation has brought to about a third; every variant then makes
the same number of steps from there, on tasks drawn with the same seeds. Told are greedy accuracy on
held-out sums (mean and standard deviation over seeds), the mean reward of all steps, the rollouts
sampled, and the seconds of a training step. It shows what parts do here: the differences of one
small task are no law. Not here: how fast steps are on real lengths (`steps.py`).
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import random
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from timing import Rows, device_name

from katgym_trainer import (
    Critic,
    GroupFilter,
    Row,
    TaskSampler,
    Trainer,
    group_advantages,
    pack,
    scale_by_pass_rate,
    with_gae,
)

PLUS, EQUALS, END, START = 10, 11, 12, 13
MAX_NUMBER = 50
GROUP_SIZE = 8
COLUMNS = ("variant", "accuracy_start", "accuracy", "accuracy_sd", "mean_reward", "rollouts",
           "step_ms", "kept_tokens", "hit_rate", "steps", "seeds")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to train."""

    algorithm: str = "grpo"
    args: Mapping[str, Any] = field(default_factory=dict)
    has_reference: bool = False
    has_task_sampler: bool = False
    has_group_filter: bool = False
    scales_by_pass_rate: bool = False


KL = {"kl_coef": 0.02}
PROXIMAL = {"ratio_to": "proximal", "importance": "token"}
VARIANTS = {
    "grpo": Variant(),
    "reinforce": Variant(algorithm="reinforce", args={"advantage": "rloo"}),
    "rloo": Variant(algorithm="rloo"),
    "dr_grpo": Variant(algorithm="dr_grpo", args={"loss": {"max_completion_tokens": 3}}),
    "dapo": Variant(algorithm="dapo"),
    "gspo": Variant(algorithm="gspo"),
    "cispo": Variant(algorithm="cispo"),
    "ppo with a critic": Variant(algorithm="ppo"),
    "grpo, two updates a step": Variant(args={"num_updates": 2}),
    "two updates, ratio to proximal, token TIS": Variant(args={"num_updates": 2, "loss": PROXIMAL}),
    "entropy bonus 0.01": Variant(args={"loss": {"entropy_coef": 0.01}}),
    "KL 0.02 to the start": Variant(args={"loss": KL}, has_reference=True),
    "advantages scaled by entropy": Variant(args={"advantage_scaling": "entropy"}),
    "advantages scaled by pass rate": Variant(scales_by_pass_rate=True),
    "pruned to 70 %, best": Variant(args={"pruning": "best", "max_unique_tokens": 182}),
    "pruned to 70 %, sampled": Variant(args={"pruning": "sample", "max_unique_tokens": 182}),
    "tasks by difficulty": Variant(has_task_sampler=True),
    "groups all-equal refilled": Variant(has_group_filter=True),
}


def make_model(seed: int) -> Any:
    """Return a model with random weights."""
    config = transformers.Qwen3Config(
        vocab_size=14, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=16,
        tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(seed)
    return transformers.Qwen3ForCausalLM(config).float()


def prompt_of(task: int) -> list[int]:
    """Return the tokens of a sum: both numbers of a task, in two digits each."""
    a, b = divmod(task, MAX_NUMBER)
    return [START, a // 10, a % 10, PLUS, b // 10, b % 10, EQUALS]


def answer_of(task: int) -> list[int]:
    """Return the tokens that are right."""
    total = sum(divmod(task, MAX_NUMBER))
    return [total // 10, total % 10, END]


@torch.no_grad()
def sample(model: Any, tasks: list[int], *, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return answers and their log-probs, [tasks, 3] each; rng None: the likeliest tokens."""
    ids = torch.tensor([prompt_of(task) for task in tasks])
    logprobs = []
    for _ in range(3):
        logp = model(input_ids=ids, use_cache=False).logits[:, -1].log_softmax(-1)
        chosen = logp.argmax(-1) if rng is None else torch.multinomial(
            logp.exp(), 1, generator=rng
        )[:, 0]  # fmt: skip
        logprobs.append(logp.gather(1, chosen[:, None])[:, 0])
        ids = torch.cat([ids, chosen[:, None]], 1)
    return ids[:, -3:], torch.stack(logprobs, 1)


def accuracy(model: Any, tasks: list[int]) -> float:
    """Return the share of tasks that the likeliest answer solves."""
    answers, _ = sample(model, tasks, rng=None)
    return statistics.mean(a == answer_of(t) for a, t in zip(answers.tolist(), tasks, strict=True))


def imitated(tasks: list[int], seed: int, wanted: float, held_out: list[int]) -> Any:
    """Return a model that imitation has brought to about an accuracy."""
    model, rng = make_model(seed), random.Random(seed)
    trainer = Trainer(model, "sft", args={"learning_rate": 3e-3})
    for number in range(2000):
        if number % 10 == 0 and accuracy(model, held_out) >= wanted:
            break
        rows = [Row(prompt_of(t) + answer_of(t), [0] * 7 + [1] * 3) for t in rng.sample(tasks, 64)]
        trainer.step_rows(rows)
    trainer.close()
    return model


class Loop:
    """Reinforcement learning of one variant from one start."""

    def __init__(self, start: Any, variant: Variant, tasks: list[int], seed: int) -> None:
        self.model = copy.deepcopy(start)
        self.variant = variant
        self.trainer = Trainer(
            self.model, variant.algorithm,
            args={"learning_rate": 2e-4, "seed": seed, **variant.args},
            reference=copy.deepcopy(start).requires_grad_(False) if variant.has_reference else None,
        )  # fmt: skip
        self.critic = Critic(copy.deepcopy(start)) if variant.algorithm == "ppo" else None
        if self.critic is not None:
            self.optimizer = torch.optim.AdamW(self.critic.parameters(), lr=3e-3)
        self.rng = random.Random(seed)
        self.sampling = torch.Generator().manual_seed(seed)
        self.tasks = tasks
        self.sampler = TaskSampler([str(t) for t in tasks], seed=seed)
        self.num_rollouts = 0
        self.rewards: list[float] = []

    def groups(self, num: int) -> list[tuple[int, Tensor, Tensor, list[float]]]:
        """Return task, answers, log-probs and rewards of each group of a step."""
        found = []
        chosen = GroupFilter(num, max_offered=20 * num)
        while len(found) < num:
            tasks = self._drawn(num)
            answers, logprobs = sample(
                self.model, [t for t in tasks for _ in range(GROUP_SIZE)], rng=self.sampling
            )
            for i, task in enumerate(tasks):
                of_group = slice(i * GROUP_SIZE, (i + 1) * GROUP_SIZE)
                rewards = [float(a == answer_of(task)) for a in answers[of_group].tolist()]
                self.num_rollouts += GROUP_SIZE
                self.rewards += rewards
                self.sampler.update(str(task), int(sum(rewards)), GROUP_SIZE)
                if len(found) < num and (
                    not self.variant.has_group_filter or chosen.offer(rewards)
                ):
                    found.append((task, answers[of_group], logprobs[of_group], rewards))
        return found

    def _drawn(self, num: int) -> list[int]:
        if self.variant.has_task_sampler:
            return [int(task) for task in self.sampler.sample(num)]
        return self.rng.sample(self.tasks, num)

    def step(self, num_groups: int) -> dict[str, float]:
        """Sample, reward, train."""
        rows, rewards = [], []
        pass_rates = {}
        for number, (task, answers, logprobs, found) in enumerate(self.groups(num_groups)):
            kind = self.trainer.algorithm.advantage or "reinforce"
            advantages = group_advantages(found, kind)
            pass_rates[number] = statistics.mean(found)
            rewards += found
            for answer, logp, advantage in zip(answers, logprobs, advantages, strict=True):
                rows.append(
                    Row(
                        prompt_of(task) + answer.tolist(), [0] * 7 + [1] * 3,
                        [0.0] * 7 + logp.clamp(max=0).tolist(), advantage, group=number,
                    )
                )  # fmt: skip
        if self.variant.scales_by_pass_rate:
            rows = scale_by_pass_rate(rows, pass_rates)
        if self.critic is not None:
            rows = self._valued(rows, rewards)
        return self.trainer.step_rows(rows)

    def _valued(self, rows: list[Row], rewards: list[float]) -> list[Row]:
        """Return rows with a critic's advantages; the critic is trained on their returns."""
        assert self.critic is not None
        values = self.critic.values(pack(rows, max_tokens=8192))
        rows = with_gae(
            rows, [values[i].numpy() for i in range(len(rows))], rewards=rewards, lam=0.95
        )
        self.critic.forward_backward(pack(rows, max_tokens=8192))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return rows


def measured(
    variant: Variant, starts: list[Any], tasks: list[int], held_out: list[int],
    *, num_steps: int, num_groups: int,
) -> dict[str, object]:  # fmt: skip
    """Return a row of the table."""
    ends, rewards, rollouts, steps = [], [], [], []
    for seed, start in enumerate(starts):
        loop = Loop(start, variant, tasks, seed)
        steps += [loop.step(num_groups) for _ in range(num_steps)]
        ends.append(accuracy(loop.model, held_out))
        rewards.append(statistics.mean(loop.rewards))
        rollouts.append(loop.num_rollouts)
        loop.trainer.close()

    def mean(name: str) -> object:
        found = [step[name] for step in steps if name in step]
        return round(statistics.mean(found), 3) if found else ""

    return {
        "accuracy_start": round(statistics.mean(accuracy(s, held_out) for s in starts), 3),
        "accuracy": round(statistics.mean(ends), 3),
        "accuracy_sd": round(statistics.stdev(ends), 3) if len(ends) > 1 else math.nan,
        "mean_reward": round(statistics.mean(rewards), 3),
        "rollouts": round(statistics.mean(rollouts)),
        "step_ms": round(statistics.median(step["time/step_s"] for step in steps) * 1e3, 1),
        "kept_tokens": mean("train/kept_tokens"), "hit_rate": mean("train/logprob_hit_rate"),
        "steps": num_steps, "seeds": len(starts),
    }  # fmt: skip


def main() -> None:
    """Measure, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--groups", type=int, default=16, help="of 8 rollouts, a step (16)")
    parser.add_argument("--start", type=float, default=0.33, help="accuracy of imitation (0.33)")
    parser.add_argument("--variant", default="", help="those with this in their name alone")
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    tasks = random.Random(0).sample(range(MAX_NUMBER**2), MAX_NUMBER**2)
    held_out, tasks = tasks[:500], tasks[500:]
    starts = [imitated(tasks, seed, options.start, held_out) for seed in range(options.seeds)]
    chosen = {name: v for name, v in VARIANTS.items() if options.variant in name}
    shared = {"device": device_name(torch.device("cpu"))}
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for name, variant in chosen.items():
            row = measured(
                variant, starts, tasks, held_out,
                num_steps=options.steps, num_groups=options.groups,
            )  # fmt: skip
            table.write({"variant": name, **row})
            print(
                f"{name:42} {row['accuracy_start']:.3f} -> {row['accuracy']:.3f}"
                f" +- {row['accuracy_sd']:.3f}  reward {row['mean_reward']:.3f}"
                f"  {row['rollouts']:6} rollouts  {row['step_ms']:6} ms",
                flush=True,
            )


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
