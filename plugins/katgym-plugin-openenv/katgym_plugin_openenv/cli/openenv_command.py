"""`katgym openenv`: envs as OpenEnv servers. Not here: what the subcommands do."""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {"serve": "serve an env, an episode for each client"}
"""Subcommand -> its line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Serve an env by OpenEnv's protocol.

    example:
      katgym openenv serve katgym/TreasureHunt-v1 --port 8000
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
