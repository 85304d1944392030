"""Write a new model for a few environments: Qwen3's shape, random weights, a tokenizer of its own.

The tokenizer is made of what the envs' own solutions and random play read and write; its chat
format is Qwen3's, with tool calls. `katgym train sft` teaches the model to act.

example:
  katgym train new-model models/tiny --envs 'katgym/TreasureHunt-v1?level=2'
  katgym train new-model models/tiny --envs katgym/Arithmetic-v1 --set hidden=192 --set layers=6
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym.evaluation.plan import parse_env
from katgym.plugins.registry import make
from katgym_trainer.cli.run_arguments import training_imports
from katgym_trainer.config.new_model_config import NewModelConfig

OPTIONS = ConfigOptions(NewModelConfig, flags=("seed",))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write; new or empty")
    envs = "env ids or FILE.py:CLASS, each with `?name=value&...` if needed"
    add_option(parser, "envs", envs, nargs="+", required=True, metavar="ENV")
    add_option(parser, "json")
    OPTIONS.add(parser)


def run(args: argparse.Namespace) -> int:
    """Write the model and print what it is."""
    config = OPTIONS.config(args)
    for env in args.envs:
        env_id, arguments = parse_env(env)
        make(env_id, **arguments)
    with training_imports():
        from katgym_trainer.saving.atomic_folders import check_is_free

        check_is_free(args.folder)  # before torch is imported
        from katgym_trainer.models.new_model import new_model
    made = new_model(args.folder, args.envs, config)
    if args.json:
        console.print_json(asdict(made))
    else:
        console.stdout.print(
            f"{made.num_parameters:,} parameters, {made.vocab_size} tokens of which"
            f" {made.num_lines} are lines; the longest solution has {made.longest_tokens} tokens",
        )
        console.stdout.print(made.folder, soft_wrap=True)
    return 0
