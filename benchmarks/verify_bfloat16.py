"""What the test on tokens says of tokens that SmolLM2 sampled in bfloat16.

    python benchmarks/verify_bfloat16.py > benchmarks/verify_bfloat16.csv

Half of the rollouts are sampled at temperature 1, half at 0.5. They are scored by the same weights
in bfloat16 and float32, and by others that somebody may have served in their place: quantised, with
noise, a layer short, trained on. `refused` is by the tolerances for half precision; without draws
is how a run on vLLM is tested, whose random numbers nobody knows.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import katgym
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.evaluation.store import read_rollouts
from katgym.evaluation.verification.rescore import HALF, judge_scores
from katgym.policies.base import Sampling
from katgym.policies.hf.token_scoring import score_rollout


def quantise(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Round each row to `bits` bits."""
    scale = weight.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (weight / scale.clamp_min(1e-12)).round() * scale


def change_weights(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change every matrix of a model."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(change(parameter))


def train_a_little(model: Any, ids: list[list[int]], num_steps: int) -> None:
    """Train on some texts, as a fine-tune of the same family is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for step in range(num_steps):
        row = torch.tensor([ids[step % len(ids)][:256]])
        model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Print a row for each model and each way to test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=4)
    args = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    rollouts = []
    with tempfile.TemporaryDirectory() as name:
        for temperature in (1.0, 0.5):
            config = EvalConfig(
                envs=("katgym/Arithmetic-v1?level=2", "katgym/TreasureHunt-v1?max_turns=2"),
                policy="smollm2?dtype=bfloat16",
                num_tasks=args.tasks,
                sampling=Sampling(max_tokens=64, temperature=temperature),
                seed=11,
            )
            folder = Path(name) / str(temperature)
            asyncio.run(evaluate(config, folder))
            rollouts += read_rollouts(folder)
    generator = torch.Generator().manual_seed(0)

    def noise(share: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda w: w + share * w.std() * torch.randn(w.shape, generator=generator)

    texts = [path.token_ids for r in rollouts for path in r.trajectories()]
    changes: dict[str, Callable[[Any], Any]] = {
        "the same in bfloat16": lambda model: model.to(torch.bfloat16),
        "the same in float32": lambda model: None,
        "8 bits": lambda model: change_weights(model, lambda w: quantise(w, 8)),
        "4 bits": lambda model: change_weights(model, lambda w: quantise(w, 4)),
        "noise of 1 %": lambda model: change_weights(model, noise(0.01)),
        "noise of 5 %": lambda model: change_weights(model, noise(0.05)),
        "noise of 10 %": lambda model: change_weights(model, noise(0.1)),
        "a layer short": lambda model: model.model.layers.__delitem__(15),
        "trained for 5 steps": lambda model: train_a_little(model, texts, 5),
        "trained for 40 steps": lambda model: train_a_little(model, texts, 40),
    }
    out = csv.writer(sys.stdout)
    head = "weights,draws,tokens,mean_logprob_error,worst_rollout_error,log_e,misses,refused"
    out.writerow(head.split(","))
    for what, change in changes.items():
        policy: Any = katgym.policy("smollm2?dtype=float32")
        change(policy.model)
        policy.model.eval()
        for has_draws in (True, False):
            scores = [score_rollout(policy.model, r, HALF, has_draws=has_draws) for r in rollouts]
            found = [text for _, text in judge_scores(scores, HALF)]
            num = sum(score.num_tokens for score in scores)
            whole = sum(score.logprob_error * score.num_tokens for score in scores) / num
            errors = max(score.logprob_error for score in scores)
            log_e = max(max(score.log_e) for score in scores)
            misses = sum(score.num_misses for score in scores) / max(1, num * has_draws)
            cells = (f"{whole:.4f}", f"{errors:.4f}", f"{log_e:.1f}", f"{misses:.3f}")
            out.writerow((what, "known" if has_draws else "unknown", num, *cells, len(found)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
