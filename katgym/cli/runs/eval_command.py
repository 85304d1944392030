"""Evaluate a policy in one or more environments.

An env takes arguments behind a question mark. The same command continues a run that was stopped;
what is finished is not played again. Exit code 1: some rollouts have no valid reward.

example:
  katgym eval 'katgym/Arithmetic-v1?level=1' --policy smollm2 --tasks 20 --out runs/smollm2
  katgym eval katgym/Arithmetic-v1 katgym/Chess-v1 --policy oracle --tasks 50 --out runs/oracle
  katgym eval katgym/MathProblems-v1 --policy 'vllm:http://127.0.0.1:8000#MODEL' --workers 4
"""

from __future__ import annotations

import argparse
import asyncio
import re
from functools import partial
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.cli.plan_options import plan_options
from katgym.evaluation.progress import EvalProgress
from katgym.evaluation.run import evaluate
from katgym.evaluation.statistics.component_summary import metrics_table
from katgym.evaluation.statistics.summary import summary_table

OPTIONS = plan_options(split="test", more=("num_workers", "cluster"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    OPTIONS.add(parser)
    add_option(parser, "out", "the run's folder (runs/POLICY-SEED)")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the summary."""
    config = OPTIONS.config(args)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.policy).strip("-")
    folder = args.out or Path("runs") / f"{name}-{config.seed}"
    try:
        watch = partial(EvalProgress, console.stderr)
        result = asyncio.run(evaluate(config, folder, watch=watch))
    except KeyboardInterrupt:
        console.stderr.print(
            f"stopped; what is finished is in {folder}. The same command continues there."
        )
        return 130
    if args.json:
        console.print_json(result.summary.to_json())
    else:
        console.stdout.print(summary_table(result.summary))
        for env in result.summary.envs.values():
            if (table := metrics_table(f"metrics of {env.env_id}", env.components)) is not None:
                console.stdout.print(table)
        console.stdout.print(f"\n{result.num_finished} rollouts in {result.folder}")
        if result.summary.root:
            console.stdout.print(f"root {result.summary.root}")
    if result.num_failed:
        console.stderr.print(
            f"{result.num_failed} rollouts have no valid reward (see"
            f" katgym view {result.folder} --invalid); the same command plays them again."
        )
    return int(result.num_failed > 0)
