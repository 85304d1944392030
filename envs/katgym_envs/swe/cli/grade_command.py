"""Grade a patch for a task, in fresh sandboxes with hidden tests and canaries.

Exit code 0: resolved; 1: not; 3: the infrastructure failed, nothing is known. The report names
hidden tests: keep it from whoever solves the task.

example:
  katgym swe grade --task inflection-0.5.1-0a1b2c3d --patch fix.diff
  katgym swe checkout ID work; edit work/...; katgym swe grade --task ID --patch work
  katgym swe grade --task my-tasks#ID --patch gold --json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.sandbox import WorkspaceDiff
from katgym.system import explain_os_error
from katgym_envs.swe.cli.task_arguments import (
    NO_VERDICT,
    find_task,
    open_backend,
)
from katgym_envs.swe.grading.report import GradeReport, Outcome, TestStatus
from katgym_envs.swe.patching import directory_diff
from katgym_envs.swe.task_source import TaskSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    add_option(parser, "task", "or SET#ID, or a set that holds one", required=True)
    patch = "a unified diff, '-' for standard input, a checked-out folder, or 'gold'"
    add_option(parser, "patch", patch, required=True, metavar="FILE")
    add_option(parser, "sandbox", "where tests run (local)", default="local")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Grade and print the report."""
    source, instance_id = find_task(args.task)
    patch = _read(args.patch, source, instance_id)
    report = asyncio.run(_grade(source, instance_id, patch, args))
    if args.json:
        console.print_json(report.to_json())
    else:
        _print(report)
    if report.outcome is Outcome.INFRA_ERROR:
        return NO_VERDICT
    return 0 if report.is_resolved else 1


async def _grade(
    source: TaskSource,
    instance_id: str,
    patch: str | bytes | WorkspaceDiff,
    args: argparse.Namespace,
) -> GradeReport:
    from katgym_envs.swe.grading.graded_task import GradedTask
    from katgym_envs.swe.grading.grader import grade

    task = await asyncio.to_thread(GradedTask.load, source, instance_id)
    async with aclosing(open_backend(args)) as backend:
        return await grade(task, patch, backend=backend)


def _read(name: str, source: TaskSource, instance_id: str) -> str | bytes | WorkspaceDiff:
    if name == "-":
        return sys.stdin.buffer.read()
    if name == "gold" and not Path(name).exists():
        return source.load_hidden(instance_id).gold_patch
    if Path(name).is_dir():
        with explain_os_error(Path(name)):
            return directory_diff(source.base_tree(instance_id), Path(name))
    try:
        return Path(name).read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read patch {name!r}: {e.strerror}") from e


def _print(report: GradeReport) -> None:
    console.stdout.print(f"{report.instance_id}: {report.outcome}")
    if report.reason:
        console.stdout.print(f"  {report.reason}")
    if report.trust is not None:
        why = f" ({report.trust_reason})" if report.trust_reason else ""
        console.stdout.print(f"  trust: {report.trust}{why}")
    for path, why in {**report.rejected_paths, **report.dropped_paths}.items():
        console.stdout.print(f"  {path}: {why}")
    for note in report.suspicions:
        console.stdout.print(f"  look at: {note}")
    if not report.fail_to_pass:
        return
    rows = []
    for name, tests in (("to fix", report.fail_to_pass), ("to keep", report.pass_to_pass)):
        passed = sum(status is TestStatus.PASSED for status in tests.values())
        rows.append((name, str(passed), str(len(tests))))
    console.print_rows(rows, header=("tests", "passed", "of"), right=("passed", "of"))
    console.stdout.print(
        f"{report.num_rounds} rounds, {report.num_canaries} canaries, {report.wall_s:.2f} s"
    )
