"""Check on request: does a tiny model learn the env from its oracle in 100 steps?

It runs what a user would type, in processes: `katgym train new-model`, `train sft`, `eval`.
Not here: the checks that always run (`certify.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from katgym.certificate.findings import Check, CheckReport, CheckStatus
from katgym.certificate.guesser import ALPHA, binomial_tail

NUM_STEPS = 100
NUM_TASKS = 64
"""Test tasks that the model plays before and after."""
TIMEOUT_S = 1800.0
CONFIG = """\
[model]
path = {model}

[data.oracle]
envs = [{env}]
num_tasks = {num_rollouts}

[train]
num_steps = {num_steps}
batch_rollouts = {batch}
optimizer = "muon"
learning_rate = 8e-3
num_warmup_steps = 10
backend = "cascade"
"""
BATCH = 8


class StepFailed(Exception):
    """What a command that did not work wrote last."""


def check_learnability(
    env_id: str, kwargs: Mapping[str, Any], report: CheckReport, *, num_steps: int = NUM_STEPS
) -> Check:
    """Train a new model on the oracle's train solutions and let it play test tasks.

    It passes when the model earns more than it did before and than the constant of the report's
    floors, by an exact binomial test (for rewards of 0 to 1). That it does not in so few steps
    proves nothing: it is skipped with its figures. It fails when nothing can be trained.
    """
    query = urlencode({key: str(value) for key, value in kwargs.items()})
    env = f"{env_id}?{query}" if query else env_id
    floor = max((f.constant or 0.0 for f in report.floors if f.level == ""), default=0.0)
    with tempfile.TemporaryDirectory(prefix="katgym-learn-") as name:
        folder = Path(name)
        try:
            run_katgym("train", "new-model", str(folder / "new"), "--envs", env)
            (folder / "sft.toml").write_text(
                CONFIG.format(
                    model=json.dumps(str(folder / "new")),
                    env=json.dumps(env),
                    num_rollouts=BATCH * num_steps,
                    num_steps=num_steps,
                    batch=BATCH,
                ),
                encoding="utf-8",
            )
            run_katgym("train", "sft", str(folder / "sft.toml"), "--out", str(folder / "sft"))
            before, _ = play_test_tasks(env, folder / "new", folder / "before")
            after, num = play_test_tasks(env, folder / "sft" / "model", folder / "after")
        except StepFailed as e:
            return Check(name="learnability", status=CheckStatus.FAILED, detail=str(e))
    # A floor of 0 was measured on few tasks, too: half a success among as many.
    p = binomial_tail(int(after * num), num, max(floor, before, 0.5 / NUM_TASKS))
    figures = {"before": before, "after": after, "floor": floor, "p": p, "num_tasks": float(num)}
    found = (
        f"a mean reward of {before:.1%} before and {after:.1%} after {num_steps} steps, on {num}"
        f" test tasks; a constant earns {floor:.1%}"
    )
    if p < ALPHA:
        return Check(name="learnability", status=CheckStatus.PASSED, detail=found, figures=figures)
    detail = f"not shown in so few steps: {found}"
    return Check(name="learnability", status=CheckStatus.SKIPPED, detail=detail, figures=figures)


def run_katgym(*arguments: str) -> str:
    """Run a command of katgym in a process and return what it printed."""
    command: Sequence[str] = (sys.executable, "-m", "katgym", *arguments)
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise StepFailed(f"katgym {' '.join(arguments[:2])} took over {TIMEOUT_S:.0f} s") from e
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise StepFailed(f"katgym {' '.join(arguments[:2])} says: {lines[-1][:300]}")
    return done.stdout


def play_test_tasks(env: str, model: Path, out: Path) -> tuple[float, int]:
    """Let a model play test tasks; return its mean reward and the number of rollouts."""
    more = ("--tasks", str(NUM_TASKS), "--split", "test", "--out", str(out), "--json")
    summary = json.loads(run_katgym("eval", env, "--policy", f"hf:{model}", *more))
    (found,) = summary["envs"].values()
    return found["mean_reward"] or 0.0, found["num_rollouts"] - found["num_invalid"]
