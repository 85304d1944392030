"""Make tasks: put bugs into packages from PyPI and keep those that their own tests find.

DIR/tasks.jsonl holds what an agent may see, DIR/hidden (mode 0700) all the rest; no source of a
package is kept. The same command goes on where an earlier run was stopped or killed. Ctrl-C stops
it; what was decided is kept.

example:
  katgym swe make --package inflection==0.5.1 --package cachetools==8.0.0 --out tasks --tasks 100
  katgym swe make --package parcelkit --out toy-tasks
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.errors import UsageError
from katgym_envs.swe.cli.task_arguments import add_backend_argument, open_backend

if TYPE_CHECKING:
    from katgym_envs.swe.making.set_maker import MakeConfig, MakeResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument(
        "--package", required=True, action="append", metavar="NAME==VERSION",
        help="a package whose sdist ships tests; may be given several times",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the set's folder")
    parser.add_argument("--tasks", type=int, metavar="N", help="stop at N tasks (all there are)")
    parser.add_argument("--seed", type=int, default=0, help="orders the mutants (0)")
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at a time (2)")
    parser.add_argument(
        "--split", action="append", default=[], metavar="NAME=SPLIT",
        help="a package's split; tasks of one package are always in the same",
    )  # fmt: skip
    add_backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Make the set and print what came of it."""
    from katgym_envs.swe.making.set_maker import MakeConfig

    for name in ("tasks", "workers"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is at least 1, got {value}")
    config = MakeConfig(
        packages=tuple(args.package),
        out=args.out,
        num_tasks=args.tasks,
        seed=args.seed,
        num_workers=args.workers,
        splits=_splits(args.split),
    )
    try:
        result = asyncio.run(_make(config, args))
    except KeyboardInterrupt:
        console.stderr.print(f"stopped; the same command goes on in {str(args.out)!r}")
        return 130
    _print(result, args)
    return 0 if result.tasks else 1


async def _make(config: MakeConfig, args: argparse.Namespace) -> MakeResult:
    from katgym_envs.swe.making.make_progress import MakeProgress
    from katgym_envs.swe.making.set_maker import make_set

    backend = open_backend(args)
    try:
        with MakeProgress(console.stderr, config.num_tasks) as progress:
            return await make_set(config, backend=backend, observe=progress)
    finally:
        await backend.aclose()


def _splits(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, split in pairs:
        if not (name and equals and split):
            raise UsageError(f"--split is like inflection=test, got {name + equals + split!r}")
    return {name: split for name, _, split in pairs}


def _print(result: MakeResult, args: argparse.Namespace) -> None:
    splits: dict[str, int] = {}
    for task in result.tasks:
        splits[task.split] = splits.get(task.split, 0) + 1
    if args.json:
        console.print_json(
            {
                "out": str(args.out),
                "num_tasks": len(result.tasks),
                "splits": splits,
                "mutants": dict(result.outcomes),
                "refused": dict(result.refused),
            }
        )
        return
    told = ", ".join(f"{num} {split}" for split, num in sorted(splits.items()))
    console.stdout.print(f"{len(result.tasks)} tasks ({told}) in {str(args.out)!r}", markup=False)
    for outcome, num in sorted(result.outcomes.items(), key=lambda item: -item[1]):
        console.stdout.print(f"  {num:6} mutants {outcome}", markup=False)
    for package, why in result.refused.items():
        console.stdout.print(f"  left out: {package}: {why}", markup=False, soft_wrap=True)
