"""`katgym harbor`: Harbor's task folders. Not here: what the subcommands do."""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {
    "list": "list the tasks of a folder, and why one cannot be played here",
    "export": "write repair tasks of katgym/SWE-v0 as folders",
}
"""Subcommand -> its line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """List Harbor's task folders; write repair tasks as such.

    example:
      katgym harbor list tasks
      katgym harbor export 'katgym/SWE-v0?tasks=toy' toy-tasks
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
