"""`katgym swe`: shows and grades repair tasks.

Each subcommand is a module `katgym_envs.swe.cli.<name>_command` with `add_arguments` and `run`.
Not here: what they do; the subcommands that make and check tasks, which distribution
katgym-plugin-swe-factory adds.
"""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_missing_subcommands, add_subcommands

SUBCOMMANDS = {
    "list": "list tasks",
    "show": "show one task, without what is hidden",
    "checkout": "write a task's base state into a folder, to try it by hand",
    "grade": "grade a patch",
    "export-predictions": "write a run's patches as other harnesses read them",
}
"""Subcommand -> its line of help."""

FACTORY = "katgym-plugin-swe-factory"
FACTORY_SUBCOMMANDS = ("make", "from-prs", "import", "check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Repair repositories: list and try tasks, make new ones, grade patches.

    example:
      katgym swe list --split test
      katgym swe checkout ID work && cd work
      katgym swe grade --task ID --patch fix.diff
      katgym swe make --package inflection==0.5.1 --out tasks --tasks 20
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
    add_missing_subcommands(parser, "swe", FACTORY_SUBCOMMANDS, FACTORY)
