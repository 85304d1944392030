"""Write a new model for a few environments: Qwen3's shape, random weights, a tokenizer of its own.

The tokenizer is made of what the envs' own solutions and random play read and write; its chat
format is Qwen3's, with tool calls. `katgym train sft` teaches the model to act.

example:
  katgym train new-model models/tiny --envs 'katgym/TreasureHunt-v0?level=2'
  katgym train new-model models/tiny --envs katgym/Arithmetic-v0 --hidden 192 --layers 6
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from katgym import console
from katgym.errors import MissingDependencyError

OPTIONS = {
    "hidden": ("width (128)", int),
    "layers": ("layers (3)", int),
    "heads": ("heads of queries (4)", int),
    "kv-heads": ("heads of keys and values (2)", int),
    "head-dim": ("width of a head (32)", int),
    "intermediate": ("width inside the MLPs (three times --hidden)", int),
    "vocab-size": ("most tokens of the vocabulary (1024)", int),
    "max-positions": ("tokens of the longest conversation (2048)", int),
    "rope-theta": ("base of the positions' wavelengths (100)", float),
    "num-tasks": ("tasks per env that the vocabulary is made of (64)", int),
    "init-std": ("standard deviation of the weights (0.05)", float),
    "seed": ("of the weights and the tasks (0)", int),
}
"""Option -> its help and type; the defaults are those of `NewModelConfig`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write; new or empty")
    parser.add_argument(
        "--envs", nargs="+", required=True, metavar="ENV", help="env ids, with ?name=value&..."
    )
    for name, (text, kind) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the model and print what it is."""
    try:
        from katgym_trainer.models.new_model import NewModelConfig, new_model
    except ImportError as e:
        raise MissingDependencyError(
            f"training needs {e.name!r}. Install: pip install 'katgym[train]'"
        ) from e
    names = [name.replace("-", "_") for name in OPTIONS]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    made = new_model(args.folder, args.envs, NewModelConfig(**given))
    if args.json:
        console.print_json(asdict(made))
    else:
        console.stdout.print(
            f"{made.num_parameters:,} parameters, {made.vocab_size} tokens of which"
            f" {made.num_lines} are lines; the longest solution has {made.longest_tokens} tokens",
            markup=False,
        )
        console.stdout.print(made.folder, markup=False, soft_wrap=True)
    return 0
