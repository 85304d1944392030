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
import functools
from typing import TYPE_CHECKING

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym_envs.swe.cli.task_arguments import open_backend

if TYPE_CHECKING:
    from katgym_plugin_swe_factory.making.set_maker import MakeConfig, MakeResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.description = __doc__
    parser.set_defaults(run=run)
    add = functools.partial(add_option, parser)
    package = "a package whose sdist ships tests; repeat"
    add("package", package, required=True, action="append", metavar="NAME==VERSION")
    add("out", "the set's folder", required=True)
    add("tasks", "stop there (all there are)")
    add("seed", "orders the mutants (0)", default=0)
    add("workers", "mutants tried (2)", default=2)
    split = "a package's split, in which all its tasks are; repeat"
    add("package-split", split, action="append", default=[], metavar="NAME=SPLIT")
    add("sandbox", "where tests run (local)", default="local")
    add("json")


def run(args: argparse.Namespace) -> int:
    """Make the set and print what came of it."""
    from katgym_plugin_swe_factory.making.set_maker import MakeConfig

    for name in ("tasks", "workers"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is at least 1, got {value}")
    splits = [text.partition("=") for text in args.package_split]
    for name, equals, split in splits:
        if not (name and equals and split):
            raise UsageError(f"--package-split is like inflection=test, got {name}{equals}{split}")
    config = MakeConfig(
        packages=tuple(args.package),
        out=args.out,
        num_tasks=args.tasks,
        seed=args.seed,
        num_workers=args.workers,
        splits={name: split for name, _, split in splits},
    )
    try:
        result = asyncio.run(_make(config, args))
    except KeyboardInterrupt:
        console.stderr.print(f"stopped; the same command goes on in {str(args.out)!r}")
        return 130
    _print(result, args)
    return 0 if result.tasks else 1


async def _make(config: MakeConfig, args: argparse.Namespace) -> MakeResult:
    from katgym_plugin_swe_factory.making.make_progress import MakeProgress
    from katgym_plugin_swe_factory.making.set_maker import make_set

    backend = open_backend(args)
    try:
        with MakeProgress(console.stderr, config.num_tasks) as progress:
            return await make_set(config, backend=backend, observe=progress)
    finally:
        await backend.aclose()


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
