"""Make tasks from merged pull requests of a local clone and a dump of its tracker.

A pull request makes a task if it closes an issue that says enough, changes tests, and the tests
tell the fix from its absence, in three runs each and for wrong variants of the fix. DIR/tasks.jsonl
holds what an agent may see, DIR/hidden (mode 0700) all the rest, DIR/refused.jsonl why the others
make none. The repository's code runs in sandboxes only. The same command goes on where an earlier
run was stopped. Exit code 1: no task was made, or this machine failed to try some.

example:
  katgym swe from-prs --clone ./attrs --dump ./attrs-dump --out tasks --filters filters.toml
  katgym swe from-prs --clone ./attrs --dump ./attrs-dump --out tasks \\
      --require hypothesis==6.148.2 --generated-tests ./more-tests
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.cli.options import ConfigOptions, add_option, describe_keys, knobs
from katgym.config.sections import section
from katgym.config.toml_files import read_toml
from katgym.environment.task import SPLITS
from katgym_envs.swe.cli.task_arguments import open_backend
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig, TrialConfig

if TYPE_CHECKING:
    from katgym_plugin_swe_factory.pull_requests.pull_importer import (
        Decision,
        ImportConfig,
        ImportResult,
    )

TRIAL = ConfigOptions(TrialConfig, flags=("num_sandboxes",), names={"num_sandboxes": "workers"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.description = __doc__
    parser.set_defaults(run=run)
    add = functools.partial(add_option, parser)
    add("clone", "a full git clone", required=True, type=Path, metavar="DIR")
    tracker = "a folder with repository.json, pulls.jsonl, issues.jsonl"
    add("dump", tracker, required=True, type=Path, metavar="DIR")
    add("out", "the set's folder", required=True)
    only = "try this pull request only; repeat"
    add("pull", only, action="append", type=int, default=[], metavar="N")
    keys = describe_keys({knob.path: knob.help(knob.default) for knob in knobs(FilterConfig)})
    filters = parser.add_argument_group("filters (keys of a TOML file)", keys)
    add_option(filters, "filters", "the file", type=Path, metavar="FILE")
    TRIAL.add(parser)
    add("split", "(train)", choices=SPLITS, default="train")
    add("sandbox", "where tests run (local)", default="local")
    add("json")
    group = parser.add_argument_group("environment (pytest alone)")
    package = "a package the tests need; repeat"
    add_option(group, "require", package, action="append", default=[], metavar="NAME==VERSION")
    declared = "install what pyproject.toml and setup.cfg name, with pip, on this machine"
    add_option(group, "install-declared", declared, action="store_true")
    recipes = "JSON: a venv or an image per pull request"
    add_option(group, "recipes", recipes, type=Path, metavar="FILE")
    more = "more tests, DIR/NUMBER.py; taken if gold passes, and base and a wrong fix fail"
    add_option(group, "generated-tests", more, type=Path, metavar="DIR")


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
    from katgym_plugin_swe_factory.pull_requests.pull_importer import import_pulls

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
    from katgym_plugin_swe_factory.pull_requests.environment import Recipes, read_recipes
    from katgym_plugin_swe_factory.pull_requests.generated_tests import read_generated_tests
    from katgym_plugin_swe_factory.pull_requests.pull_importer import ImportConfig

    filters = FilterConfig()
    if args.filters is not None:
        filters = section(FilterConfig, read_toml(args.filters), args.filters.name)
    return ImportConfig(
        clone=args.clone,
        dump=args.dump,
        out=args.out,
        filters=filters,
        trial=TRIAL.config(args),
        recipes=replace(
            Recipes() if args.recipes is None else read_recipes(args.recipes),
            requirements=tuple(args.require),
            is_declared_installed=args.install_declared,
        ),
        generated=read_generated_tests(args.generated_tests) if args.generated_tests else {},
        split=args.split,
        numbers=tuple(dict.fromkeys(args.pull)),
    )


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
