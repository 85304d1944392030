"""`katgym cluster`: looks at runs on many machines, before they begin and while they run.

Each subcommand is a module `katgym_trainer.cli.cluster.<name>_command` with `add_arguments` and
`run`. Not here: what they do.
"""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {
    "plan": "predict busy shares, the first bottleneck and cost of a run",
    "status": "show a run's rollout workers and servers: who is where, restarts, groups",
}
"""Subcommand -> its line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Look at a run on many machines.

    example:
      katgym cluster plan rl.toml --set copies=8
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
