"""`katgym train`: trains on rollouts, recorded or played meanwhile, and draws what a run measured.

Each subcommand is a module `katgym_trainer.cli.<name>_command` with `add_arguments` and `run`. Not
here: what they do.
"""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {
    "new-model": "write a small model with random weights and its own tokenizer",
    "sft": "supervised: all rollouts of teachers, the oracle, or a recorded policy",
    "rft": "reinforcement fine-tuning: rollouts of the highest reward, all tasks alike",
    "rl": "reinforcement learning: the model plays, and learns from what succeeded",
    "plot": "draw the curves of a run",
}
"""Subcommand -> its line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Train a model; a run that was stopped goes on where it was.

    example:
      katgym train new-model models/tiny --envs katgym/TreasureHunt-v1
      katgym train sft sft.toml --out runs/sft
      katgym train rft rft.toml --out runs/rft
      katgym train rl rl.toml --out runs/rl
      katgym train plot runs/sft
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
