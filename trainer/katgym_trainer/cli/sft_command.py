"""Train a model on what rollouts answered: supervised fine-tuning.

CONFIG is a TOML file; docs/guides/train.md shows one. Rollouts come from run folders of
`katgym eval`, from files of rollouts, or from the envs' own solutions. Ctrl-C finishes the step and
saves a checkpoint; the same command goes on from there.

example:
  katgym train sft sft.toml --out runs/sft
"""

from __future__ import annotations

import argparse

from katgym_trainer.cli.run_arguments import add_run_arguments, run_kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train and print what came of it."""
    return run_kind("sft", args)
