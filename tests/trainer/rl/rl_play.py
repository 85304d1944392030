"""An env that a tiny random model can learn within seconds, and runs on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byte_tokenizer import byte_tokenizer
from tiny_qwen import tiny_qwen
from waiting import HANG_S, wait_until

import katgym
from katgym.plugins.registry import register

ENV_ID = "rltest/Low-v0"

CONFIG = """
[model]
path = "{model}"

[[envs]]
id = "{env}"
num_tasks = 12

[policy]
max_tokens = 12
max_context_tokens = 400

[rollouts]
num_groups = 4
group_size = 4
{rollouts}

[train]
num_steps = {steps}
learning_rate = 1e-2
seed = 5
{train}

[checkpoint]
every_steps = 2
{more}
"""


class LowEnv(katgym.Env):
    """Pays for the share of an answer's characters that are digits: dense, and quickly learned."""

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-{i}", prompt=f"Digits {i}!") for i in range(20)]

    @katgym.scorer()
    def share_of_digits(self) -> float:
        """Digits over characters."""
        answer = self.final_answer
        return sum(c.isdigit() for c in answer) / max(1, len(answer))

    def oracle_action(self) -> katgym.Action:
        return "0123456789"


def register_env() -> str:
    """Register the env in this process, and return its id."""
    register(ENV_ID, LowEnv, description="Answer in digits.", should_replace=True)
    return ENV_ID


def save_model(folder: Path, **more: Any) -> Path:
    """Write a random model with a tokenizer of bytes; more: seed, and keys of its shape."""
    tokenizer = byte_tokenizer()
    shape: dict[str, Any] = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    shape |= {"max_position_embeddings": 512, "vocab_size": len(tokenizer)}
    model = tiny_qwen(**{**shape, **more})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config_text(model: Path, *, steps: int = 6, **more: Any) -> str:
    """Return the text of a run's file."""
    told: Mapping[str, Any] = {"env": ENV_ID, "rollouts": "", "train": "", "more": "", **more}
    return CONFIG.format(model=model, steps=steps, **told)


def start_run(config: Path, run: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    """Start `katgym train rl` in a process of its own; variables: of its environment, also."""
    script = Path(__file__).parents[1] / "ranks" / "rl_process.py"
    path = os.pathsep.join([str(config.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, str(script), "train", "rl", str(config), "--out", str(run), *more],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines that a run has written so far, as a whole."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_steps(
    run: Path, num: int, process: subprocess.Popen[str], *, limit_s: float = HANG_S
) -> None:
    """Return once a run has taken so many steps."""

    def are_there() -> bool:
        assert process.poll() is None, process.communicate()
        return len(metrics(run)) >= num

    wait_until(are_there, f"{num} steps", limit_s=limit_s)
