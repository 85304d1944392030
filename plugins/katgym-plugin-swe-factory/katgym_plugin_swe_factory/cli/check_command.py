"""Check that tasks are sound: solvable, failing without a fix, hidden well, safe from forgery.

A task is named with the reason when the no-op passes, gold fails in a run (of all tests in order,
backwards and shuffled, and of random parts), a canary passes on correct code, the statement holds a
line of the fix, something hidden can be found in the sandbox an agent gets, or the grader does not
resolve gold. Exit code 1: some are not sound; 3: some could not be checked.

example:
  katgym swe check my-tasks
  katgym swe check shipped --split test --json
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.reward import Trust
from katgym.environment.task import SPLITS
from katgym.errors import UsageError, unknown_name
from katgym_envs.swe.cli.task_arguments import NO_VERDICT, open_backend
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.task_source import TaskSource

if TYPE_CHECKING:
    from katgym_plugin_swe_factory.checking.task_check import TaskCheckResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.description = __doc__
    parser.set_defaults(run=run)
    parser.add_argument("tasks", metavar="TASKS", help="'shipped', 'toy', a set's folder or file")
    add_option(parser, "id", "check this task only; repeat", action="append", metavar="ID")
    add_option(parser, "split", "(all)", choices=SPLITS)
    add_option(parser, "workers", "tasks checked (2)", type=int, default=2)
    add_option(parser, "sandbox", "where tests run (local)", default="local")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Check and print what is wrong."""
    if args.workers < 1:
        raise UsageError(f"--workers is at least 1, got {args.workers}")
    source = open_source(args.tasks)
    known = [task.instance_id for task in source.tasks(args.split)]
    for name in args.id or ():
        if name not in known:
            raise UsageError(unknown_name("task", name, known))
    ids = args.id or known
    results = asyncio.run(_check(source, ids, args))
    bad = [r for r in results if not r.is_sound]
    if args.json:
        fields = ("instance_id", "is_sound", "problems", "fault", "num_canaries", "trust")
        console.print_json([{name: getattr(r, name) for name in fields} for r in results])
    complete = sum(r.trust is Trust.COMPLETE for r in results)
    console.stderr.print(
        f"{len(results) - len(bad)} of {len(results)} tasks are sound, the trust of {complete} is"
        " complete"
    )
    if any(r.fault for r in results):
        return NO_VERDICT
    return 1 if bad or not results else 0


async def _check(
    source: TaskSource, ids: list[str], args: argparse.Namespace
) -> list[TaskCheckResult]:
    from katgym_plugin_swe_factory.checking.task_check import check_tasks

    results: list[TaskCheckResult] = []
    async with aclosing(open_backend(args)) as backend:
        async for result in check_tasks(source, ids, backend, num_workers=args.workers):
            results.append(result)
            if not args.json:
                fault = [f"not checked: {result.fault}"] if result.fault else []
                for text in (*result.problems, *fault):
                    console.stdout.print(f"{result.instance_id}: {text}", soft_wrap=True)
            if len(results) % 25 == 0:
                console.stderr.print(f"{len(results)}/{len(ids)} checked")
    return results
