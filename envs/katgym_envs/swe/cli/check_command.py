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

from katgym import console
from katgym.errors import UsageError, unknown_name
from katgym.task import SPLITS
from katgym_envs.swe.cli.task_arguments import NO_VERDICT, add_backend_argument, open_backend
from katgym_envs.swe.making.check_result import CheckResult
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.task_source import TaskSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("tasks", metavar="TASKS", help="'shipped', 'toy', a set's folder or file")
    parser.add_argument("--id", action="append", metavar="ID", help="check these tasks only")
    parser.add_argument("--split", choices=SPLITS, help="check one split only")
    parser.add_argument("--workers", type=int, default=2, help="tasks checked at a time (2)")
    add_backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


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
        console.print_json([_to_json(r) for r in results])
    console.stderr.print(f"{len(results) - len(bad)} of {len(results)} tasks are sound")
    if any(r.fault for r in results):
        return NO_VERDICT
    return 1 if bad or not results else 0


async def _check(source: TaskSource, ids: list[str], args: argparse.Namespace) -> list[CheckResult]:
    from katgym_envs.swe.making.task_check import check_tasks

    backend = open_backend(args)
    results: list[CheckResult] = []
    try:
        async for result in check_tasks(source, ids, backend, num_workers=args.workers):
            results.append(result)
            if not args.json:
                fault = [f"not checked: {result.fault}"] if result.fault else []
                for text in (*result.problems, *fault):
                    console.stdout.print(
                        f"{result.instance_id}: {text}", markup=False, soft_wrap=True
                    )
            if len(results) % 25 == 0:
                console.stderr.print(f"{len(results)}/{len(ids)} checked")
    finally:
        await backend.aclose()
    return results


def _to_json(result: CheckResult) -> dict[str, object]:
    return {
        "instance_id": result.instance_id,
        "is_sound": result.is_sound,
        "problems": list(result.problems),
        "fault": result.fault,
        "num_canaries": result.num_canaries,
    }
