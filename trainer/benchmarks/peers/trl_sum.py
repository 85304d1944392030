"""TRL's GRPOTrainer learns the sums; prints a JSON line for each step. Runs in TRL's own venv.

python trl_sum.py MODEL --steps 20 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
from datasets import Dataset
from sum_task import GROUP_SIZE, LEARNING_RATE, MAX_TOKENS, NUM_GROUPS, reward, tasks
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def rewards(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return what TRL calls a reward function's values."""
    return [reward(c[0]["content"], a) for c, a in zip(completions, answer, strict=True)]


class Steps(TrainerCallback):
    """Tells the time of every step and its mean reward."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print a step."""
        if logs and "reward" in logs:
            seconds = round(time.perf_counter() - self.began, 3)
            line = {"step": state.global_step, "seconds": seconds, "reward": logs["reward"]}
            print(json.dumps(line), flush=True)


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    data = [
        {"prompt": [{"role": "user", "content": prompt}], "answer": answer}
        for prompt, answer in tasks(args.examples)
    ]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=NUM_GROUPS * GROUP_SIZE,
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_TOKENS,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=args.steps,
        seed=args.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_completions=False,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(args.model, padding_side="left"),
        callbacks=[Steps()],
    )
    trainer.train()
    return 0


if __name__ == "__main__":
    sys.exit(main())
