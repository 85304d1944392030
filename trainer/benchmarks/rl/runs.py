"""Runs of `katgym train rl` for measurements: played by the command, read from their folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def play(config: Path, folder: Path, settings: Sequence[str], *, cores: Sequence[int]) -> None:
    """Train by a configuration with some keys replaced, a thread on each of some cores.

    A run that was begun goes on. Ends the program, with what the command said, if it fails.
    """
    command = [sys.executable, "-m", "katgym", "train", "rl", str(config), "--out", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, cores)), *command],
        env={**os.environ, "OMP_NUM_THREADS": str(len(cores))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr[-2000:]}")


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a run's `metrics.jsonl` or `eval.jsonl`."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def values(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return a metric's value of each line that has it."""
    return [line[name] for line in lines if name in line]


def num_sampled(lines: Sequence[dict[str, Any]]) -> int:
    """Return the tokens that were sampled in all steps."""
    return round(sum(x["rate/sampled_tokens_per_s"] * x["time/total_s"] for x in lines))
