"""Make tasks: put bugs into packages from PyPI and keep those that their own tests find.

DIR/tasks.jsonl holds what an agent may see, DIR/hidden (mode 0700) all the rest; no source of a
package is kept. The same command goes on where an earlier run was stopped or killed. Ctrl-C stops
it; what was decided is kept.

example:
  katgym swe make --package inflection==0.5.1 --package cachetools==8.0.0 --out tasks --tasks 100
  katgym swe make --package inflection --package toolz --out tasks --set splits.inflection=test
  katgym swe make --package parcelkit --out toy-tasks
"""

from __future__ import annotations

import argparse

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym_plugin_swe_factory.cli.making_run import run_making
from katgym_plugin_swe_factory.making.make_config import MakeConfig

OPTIONS = ConfigOptions(
    MakeConfig,
    flags=("packages", "out", "num_tasks", "num_workers", "seed"),
    names={"packages": "package"},
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.description = __doc__
    parser.set_defaults(run=run)
    OPTIONS.add(parser)
    add_option(parser, "sandbox", "where tests run (local)", default="local")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Make the set and print what came of it."""
    from katgym_plugin_swe_factory.making.make_progress import MakeProgress
    from katgym_plugin_swe_factory.making.mutation_source import MutationSource

    config = OPTIONS.config(args)
    with MakeProgress(console.stderr, config.num_tasks) as progress:
        return run_making(
            lambda backend: MutationSource(config, backend),
            args,
            kind="mutants",
            observe=progress,
            note=progress.note,
        )
