"""Play groups of rollouts into a store, to be trained on later.

The tasks are those that `katgym eval` plays with the same seed, an env's arguments stand behind a
question mark. Every rollout is in the store when it has ended; the same command plays what is
missing. Several collectors and a gateway may write to one store. Exit code 1: some rollouts have
no valid reward.

example:
  katgym rollouts collect 'katgym/Arithmetic-v1?level=1' --policy smollm2 --tasks 20 \\
      --group-size 8 --store rollouts
  katgym rollouts collect katgym/MathProblems-v1 --policy 'vllm:http://127.0.0.1:8000#MODEL' \\
      --tasks 500 --group-size 8 --seed 1 --store rollouts
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.cli.plan_options import plan_options
from katgym.evaluation.progress import EvalProgress
from katgym.evaluation.run import collect_rollouts

OPTIONS = plan_options(split="train")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    OPTIONS.add(parser)
    add_option(parser, "store", required=True)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Collect and print the summary."""
    try:
        watch = partial(EvalProgress, console.stderr)
        result = asyncio.run(collect_rollouts(OPTIONS.config(args), args.store, watch=watch))
    except KeyboardInterrupt:
        console.stderr.print(
            f"stopped; what has ended is in {args.store}. The same command continues there.",
        )
        return 130
    if args.json:
        console.print_json(result.to_json())
    else:
        invalid = ", ".join(f"{kind} {num}" for kind, num in result.invalid.items())
        rows = {
            "groups": f"{result.num_groups} of {result.num_planned_groups} complete",
            "rollouts": f"{result.num_rollouts} of {result.num_planned},"
            f" {result.num_resumed} were there",
            "mean reward": "-" if result.mean_reward is None else f"{result.mean_reward:.3f}",
            "invalid": invalid or "0",
            "tokens read": f"{result.num_prompt_tokens:,}",
            "tokens sampled": f"{result.num_completion_tokens:,}",
            "store": str(result.folder),
        }
        console.print_rows((Text(name, style="bold"), value) for name, value in rows.items())
    if result.invalid:
        console.stderr.print(
            f"{sum(result.invalid.values())} rollouts have no valid reward; the same command plays"
            " them again."
        )
    return int(bool(result.invalid))
