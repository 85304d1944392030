"""Evaluate a policy in one or more environments.

An env takes arguments behind a question mark. The same command continues a run that was stopped;
what is finished is not played again. Exit code 1: some rollouts have no valid reward.

example:
  katgym eval 'katgym/Arithmetic-v0?level=1' --policy smollm2 --tasks 20 --out runs/smollm2
  katgym eval katgym/Arithmetic-v0 katgym/Chess-v0 --policy oracle --tasks 50 --out runs/oracle
  katgym eval katgym/MathProblems-v0 --policy 'vllm:http://127.0.0.1:8000#MODEL' --group-size 4
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from katgym import console
from katgym.cli.plan_arguments import add_plan_arguments, config_of
from katgym.evaluation.component_summary import metrics_table
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.playing import Observer
from katgym.evaluation.progress import EvalProgress
from katgym.evaluation.run import EvalResult, evaluate
from katgym.evaluation.store import RunStore
from katgym.evaluation.summary import summary_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_plan_arguments(parser, split="test")
    parser.add_argument("--out", type=Path, help="the run's folder (runs/POLICY-SEED)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the summary."""
    config = config_of(args)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", args.policy).strip("-")
    folder = args.out or Path("runs") / f"{name}-{args.seed}"
    try:
        result = asyncio.run(_evaluate(config, folder))
    except KeyboardInterrupt:
        console.stderr.print(
            f"stopped; what is finished is in {folder}. The same command continues there."
        )
        return 130
    _report(result, is_json=args.json)
    return int(result.num_failed > 0)


async def _evaluate(config: EvalConfig, folder: Path) -> EvalResult:
    shown: list[EvalProgress] = []

    def observe(plan: Plan, store: RunStore) -> Observer:
        shown.append(EvalProgress(console.stderr, plan, store.resumed()).__enter__())
        return shown[0]

    try:
        return await evaluate(config, folder, observer=observe)
    finally:
        for progress in shown:
            progress.__exit__(None, None, None)


def _report(result: EvalResult, *, is_json: bool) -> None:
    if is_json:
        console.print_json(result.summary.to_json())
    else:
        console.stdout.print(summary_table(result.summary))
        for env in result.summary.envs.values():
            if (table := metrics_table(f"metrics of {env.env_id}", env.components)) is not None:
                console.stdout.print(table)
        console.stdout.print(f"\n{result.num_finished} rollouts in {result.folder}")
    if result.num_failed:
        console.stderr.print(
            f"{result.num_failed} rollouts have no valid reward (see"
            f" {result.folder / 'failures.jsonl'}); the same command plays them again."
        )
