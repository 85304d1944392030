"""Make tasks from merged pull requests of a local clone and a dump of its tracker.

A pull request makes a task if it closes an issue that says enough, changes tests, and the tests
tell the fix from its absence, in three runs each and for wrong variants of the fix. DIR/tasks.jsonl
holds what an agent may see, DIR/hidden (mode 0700) all the rest, DIR/refused.jsonl why the others
make none. The repository's code runs in sandboxes only. The same command goes on where an earlier
run was stopped. Exit code 1: no task was made, or this machine failed to try some.

example:
  katgym swe from-prs --clone ./attrs --dump ./attrs-dump --out tasks --min-stars 500
  katgym swe from-prs --clone ./attrs --dump ./attrs-dump --out tasks \\
      --require hypothesis==6.148.2 --generated-tests ./more-tests
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.errors import UsageError
from katgym.task import SPLITS
from katgym_envs.swe.cli.task_arguments import add_backend_argument, open_backend
from katgym_envs.swe.pull_requests.import_config import FilterConfig, Scope, TrialConfig

if TYPE_CHECKING:
    from katgym_envs.swe.pull_requests.pull_importer import Decision, ImportConfig, ImportResult

_FILTER_NUMBERS = {
    "min_stars": "leave out a repository with fewer stars",
    "max_stars": "or with more",
    "min_forks": "leave out a repository with fewer forks",
    "min_activity": "comments and reviews a pull request has at least",
    "min_issue_letters": "characters its issues say at least, besides links",
    "min_issue_words": "words of prose among them",
    "max_files": "files it changes at most",
    "max_product_files": "files of the product it changes at most",
    "max_lines": "lines of the product it adds and deletes at most",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("--clone", required=True, type=Path, metavar="DIR", help="a full git clone")
    parser.add_argument(
        "--dump", required=True, type=Path, metavar="DIR",
        help="a folder with repository.json, pulls.jsonl, issues.jsonl",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the set's folder")
    parser.add_argument(
        "--pull", action="append", type=int, default=[], metavar="N",
        help="try this pull request only; may be given several times",
    )  # fmt: skip
    _add_environment(parser)
    _add_filters(parser)
    _add_trial(parser)
    parser.add_argument("--split", choices=SPLITS, default="train", help="of the tasks (train)")
    add_backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_environment(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("environment (pytest alone)")
    group.add_argument(
        "--require", action="append", default=[], metavar="NAME==VERSION",
        help="a package the tests need; may be given several times",
    )  # fmt: skip
    group.add_argument(
        "--install-declared", action="store_true",
        help="install what pyproject.toml and setup.cfg name, with pip, on this machine",
    )  # fmt: skip
    group.add_argument(
        "--recipes", type=Path, metavar="FILE", help="JSON: a venv or an image per pull request"
    )
    group.add_argument(
        "--generated-tests", type=Path, metavar="DIR",
        help="more tests, DIR/NUMBER.py; taken if gold passes, and base and a wrong fix fail",
    )  # fmt: skip


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters")
    defaults = FilterConfig()
    for name, text in _FILTER_NUMBERS.items():
        default = getattr(defaults, name)
        told = "" if default is None else f" ({default})"
        group.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=text + told
        )
    group.add_argument(
        "--min-python", type=float, default=defaults.min_python_share, metavar="SHARE",
        help=f"share of Python among the product's changed files ({defaults.min_python_share:g})",
    )  # fmt: skip
    group.add_argument("--no-archived", action="store_true", help="leave out archived repositories")
    group.add_argument(
        "--since", type=_day, metavar="YYYY-MM-DD", help="merged on that day or later"
    )
    group.add_argument(
        "--until", type=_day, metavar="YYYY-MM-DD", help="merged before that day ends"
    )
    group.add_argument(
        "--skip-label", action="append", default=[], metavar="LABEL",
        help="leave out pull requests with this label; may be given several times",
    )  # fmt: skip


def _add_trial(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trial")
    defaults = TrialConfig()
    group.add_argument(
        "--scope", choices=[s.value for s in Scope], default=defaults.scope.value,
        help="test modules to run: all, or those the pull request changes (all)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=float, default=defaults.timeout_s, metavar="SECONDS",
        help=f"of one run of the tests ({defaults.timeout_s:g})",
    )  # fmt: skip
    group.add_argument(
        "--mutants", type=int, default=defaults.max_mutants, metavar="N",
        help=f"wrong variants of the fix that are tried ({defaults.max_mutants})",
    )  # fmt: skip
    group.add_argument(
        "--min-killed", type=float, default=defaults.min_killed_share, metavar="SHARE",
        help=f"share of them that the tests have to notice ({defaults.min_killed_share:g})",
    )  # fmt: skip
    group.add_argument("--workers", type=int, default=2, help="test runs at a time (2)")
    group.add_argument("--seed", type=int, default=0, help="draws the wrong variants (0)")


def run(args: argparse.Namespace) -> int:
    """Import and print what came of it."""
    config = _config(args)
    try:
        result = asyncio.run(_import(config, args))
    except KeyboardInterrupt:
        console.stderr.print(f"stopped; the same command goes on in {str(args.out)!r}")
        return 130
    _print(result, args)
    return 0 if result.tasks and not result.num_faults else 1


async def _import(config: ImportConfig, args: argparse.Namespace) -> ImportResult:
    from katgym_envs.swe.pull_requests.pull_importer import import_pulls

    def observe(decision: Decision) -> None:
        refusal = decision.refusal
        told = f"{refusal.filter}: {refusal.reason}" if refusal else f"task {decision.instance_id}"
        console.stderr.print(f"#{decision.number} {told}", markup=False, soft_wrap=True)

    backend = open_backend(args)
    try:
        return await import_pulls(config, backend=backend, observe=observe)
    finally:
        await backend.aclose()


def _config(args: argparse.Namespace) -> ImportConfig:
    from katgym_envs.swe.pull_requests.environment import Recipes, read_recipes
    from katgym_envs.swe.pull_requests.generated_tests import read_generated_tests
    from katgym_envs.swe.pull_requests.pull_importer import ImportConfig

    _check(args)
    return ImportConfig(
        clone=args.clone,
        dump=args.dump,
        out=args.out,
        filters=_filters(args),
        trial=TrialConfig(
            scope=Scope(args.scope),
            min_killed_share=args.min_killed,
            max_mutants=args.mutants,
            timeout_s=args.timeout,
            num_sandboxes=args.workers,
            seed=args.seed,
        ),
        recipes=replace(
            Recipes() if args.recipes is None else read_recipes(args.recipes),
            requirements=tuple(args.require),
            is_declared_installed=args.install_declared,
        ),
        generated=read_generated_tests(args.generated_tests) if args.generated_tests else {},
        split=args.split,
        numbers=tuple(dict.fromkeys(args.pull)),
    )


def _filters(args: argparse.Namespace) -> FilterConfig:
    return FilterConfig(
        **{name: getattr(args, name) for name in _FILTER_NUMBERS},
        min_python_share=args.min_python,
        is_archived_allowed=not args.no_archived,
        since=args.since,
        until=None if args.until is None else args.until + datetime.timedelta(days=1),
        skipped_labels=tuple(args.skip_label),
    )


def _check(args: argparse.Namespace) -> None:
    for name in ("min_python", "min_killed"):
        if not 0 <= getattr(args, name) <= 1:
            value = getattr(args, name)
            raise UsageError(f"--{name.replace('_', '-')} is a share from 0 to 1, got {value:g}")
    for name in ("mutants", *_FILTER_NUMBERS):
        value = getattr(args, name)
        if value is not None and value < 0:
            raise UsageError(f"--{name.replace('_', '-')} is at least 0, got {value}")
    if args.workers < 1:
        raise UsageError(f"--workers is at least 1, got {args.workers}")
    if not args.timeout > 0:
        raise UsageError(f"--timeout is above 0, got {args.timeout:g}")


def _day(text: str) -> datetime.datetime:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a day is like 2025-01-31, got {text!r}") from None
    return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)


def _print(result: ImportResult, args: argparse.Namespace) -> None:
    if args.json:
        console.print_json(
            {"out": str(args.out), "tasks": list(result.tasks), "refused": result.refusals}
        )
        return
    num, total = len(result.tasks), len(result.decisions)
    console.stdout.print(
        f"{num} tasks of {total} pull requests in {str(args.out)!r}", markup=False, soft_wrap=True
    )
    for name, count in result.refusals.items():
        console.stdout.print(f"  {count:6} refused by {name}", markup=False)
