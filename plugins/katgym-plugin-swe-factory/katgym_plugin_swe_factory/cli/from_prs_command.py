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
import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.cli.options import ConfigOptions, add_option, describe_keys, knobs
from katgym.config.sections import section
from katgym.config.toml_files import read_toml
from katgym.environment.task import SPLITS
from katgym_plugin_swe_factory.cli.making_run import run_making
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig, TrialConfig

if TYPE_CHECKING:
    from katgym_plugin_swe_factory.making.trial import Trial
    from katgym_plugin_swe_factory.pull_requests.pull_source import PullConfig

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
    from katgym_plugin_swe_factory.pull_requests.pull_source import PullSource

    config = _config(args)
    return run_making(
        lambda backend: PullSource(config, backend), args, kind="pull requests", observe=_observe
    )


def _observe(name: str, trial: Trial[Any], is_old: bool) -> None:
    told = f"{trial.outcome}: {trial.reason}"
    if trial.task is not None:
        told = f"task {trial.task.instance_id}"
    console.stderr.print(f"{name} {told}", soft_wrap=True)


def _config(args: argparse.Namespace) -> PullConfig:
    from katgym_plugin_swe_factory.pull_requests.environment import Recipes, read_recipes
    from katgym_plugin_swe_factory.pull_requests.generated_tests import read_generated_tests
    from katgym_plugin_swe_factory.pull_requests.pull_source import PullConfig

    filters = FilterConfig()
    if args.filters is not None:
        filters = section(FilterConfig, read_toml(args.filters), args.filters.name)
    return PullConfig(
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
