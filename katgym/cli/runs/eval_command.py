"""Evaluate a policy in one or more environments, or a suite: models by environments by seeds.

An env takes arguments behind a question mark. The same command continues a run that was stopped;
what is finished is not played again. Exit code 1: some rollouts have no valid reward. FILE.toml in
place of ENV is a suite, whose runs become one board (docs/guides/evaluate.md shows one).

example:
  katgym eval 'katgym/Arithmetic-v1?level=1' --policy smollm2 --tasks 20 --out runs/smollm2
  katgym eval katgym/Arithmetic-v1 katgym/Chess-v1 --policy oracle --tasks 50 --out runs/oracle
  katgym eval 'my_env.py:MyEnv?level=2' --policy oracle
  katgym eval katgym/MathProblems-v1 --policy 'vllm:http://127.0.0.1:8000#MODEL' --workers 4
  katgym eval katgym/Arithmetic-v1 --policy 'oracle?accuracy=0.4' --tts best_of=8
  katgym eval suite.toml --dry-run
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict, replace
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.cli.plan_options import plan_config, plan_options
from katgym.cli.runs.suite import run_suite
from katgym.environment.reward import Trust
from katgym.errors import UsageError
from katgym.evaluation.bounds import PlanBounds
from katgym.evaluation.plan import EvalConfig, Plan, ScalingConfig
from katgym.evaluation.progress import EvalProgress
from katgym.evaluation.run import evaluate
from katgym.evaluation.scaling.scaled_run import evaluate_scaled
from katgym.evaluation.scaling.scaling_table import scaling_rows, scaling_table
from katgym.evaluation.statistics.component_summary import metrics_table
from katgym.evaluation.statistics.summary import summary_table, trust_text
from katgym.evaluation.store import PlanStore

OPTIONS = plan_options(split="test", more=("num_workers", "tts"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    OPTIONS.add(parser)
    add_option(parser, "out", "the run's folder (one of its own in runs/, for each configuration)")
    add_option(parser, "json")
    add_option(parser, "dry-run", "the rollouts, calls and tokens at most, and what they cost")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the summary."""
    if any(env.endswith(".toml") for env in args.envs):
        if others := [*args.envs[1:], *OPTIONS.given(args)]:
            raise UsageError(f"a suite is one file, which says everything; leave out {others[0]}")
        return run_suite(args)
    config = plan_config(OPTIONS, args)
    if args.dry_run:
        return _print_bounds(config, is_json=args.json)
    opened: list[Path] = []

    def watch(store: PlanStore) -> EvalProgress:
        opened.append(store.store.folder)
        return EvalProgress(console.stderr, store)

    try:
        play = evaluate_scaled if config.tts else evaluate
        result = asyncio.run(play(config, args.out, watch=watch))
    except KeyboardInterrupt:
        kept = f"what is finished is in {opened[0]}" if opened else "nothing was played"
        text = f"stopped; {kept}. The same command continues there."
        console.stderr.print(text, soft_wrap=True)
        return 130
    scaled = scaling_rows(result) if config.tts else []
    if args.json:
        more = {"tts": [asdict(row) for row in scaled]} if scaled else {}
        console.print_json({**result.summary.to_json(), **more})
    else:
        console.stdout.print(summary_table(result.summary))
        for env in result.summary.envs.values():
            if env.trust.keys() - {Trust.COMPLETE}:
                console.stdout.print(f"trust of {env.env_id}: {trust_text([env])}", soft_wrap=True)
            if (table := metrics_table(f"metrics of {env.env_id}", env.components)) is not None:
                console.stdout.print(table)
        if scaled:
            console.stdout.print(scaling_table(scaled))
        console.stdout.print(f"\n{result.num_finished} rollouts in {result.folder}")
        if result.summary.root:
            console.stdout.print(f"root {result.summary.root}")
    if result.num_failed:
        console.stderr.print(
            f"{result.num_failed} rollouts have no valid reward (see"
            f" katgym view {result.folder} --invalid); the same command plays them again."
        )
    return int(result.num_failed > 0)


def _print_bounds(config: EvalConfig, *, is_json: bool) -> int:
    if config.tts:
        episodes = ScalingConfig.parse(config.tts).max_episodes
        config = replace(config, tts="", group_size=episodes)
    plan = Plan.of(config)
    told = asdict(PlanBounds.of(plan))
    if is_json:
        console.print_json(told)
    else:
        shown = {
            "rollouts": f"{told['num_rollouts']:,}",
            "calls of the model": f"{told['num_calls']:,} at most",
            "sampled tokens": f"{told['num_completion_tokens']:,} at most",
        }
        console.print_rows(shown.items())
    return 0
