"""What `katgym train sft` and `rft` share: their arguments, the run, what is printed.

Not here: the subcommands.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.errors import UsageError

if TYPE_CHECKING:
    from katgym_trainer.runs.train_run import TrainResult


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and the options."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (runs/NAME-OF-CONFIG)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="refuse a folder that holds no run to go on with"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps in all, in place of the file's"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="in place of the file's, such as train.seed=1; may be given several times",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run_kind(kind: str, args: argparse.Namespace) -> int:
    """Train and print what came of it; return the exit code."""
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.runs.toml_file import kept_text
    from katgym_trainer.runs.train_config_file import read_config
    from katgym_trainer.runs.train_run import train_run
    from katgym_trainer.runs.train_run_config import TrainKind

    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps is an int >= 1, got {args.steps!r}")
    config = read_config(args.config, TrainKind(kind), num_steps=args.steps, settings=args.settings)
    folder = args.out or Path("runs") / args.config.stem
    with TrainProgress(console.stderr) as progress:
        result = train_run(
            config,
            folder,
            config_text=kept_text(args.config, args.settings),
            observer=progress,
            is_resume=args.resume,
        )
    _print(result, args, folder)
    return result.exit_code


def print_how_to_go_on(kind: str, step: int, args: argparse.Namespace, folder: Path) -> None:
    """Tell the command that goes on with a run that was stopped."""
    command = ["katgym", "train", kind, str(args.config), "--out", str(folder)]
    if args.steps is not None:
        command += ["--steps", str(args.steps)]
    for setting in args.settings:
        command += ["--set", setting]
    console.stderr.print(
        f"stopped after step {step}; go on with: {shlex.join(command)}",
        markup=False,
        soft_wrap=True,
    )


def _print(result: TrainResult, args: argparse.Namespace, folder: Path) -> None:
    if args.json:
        console.print_json(result.to_json())
    else:
        loss = result.metrics.get("train/loss")
        told = "" if loss is None else f", loss {loss:.4f}"
        left_out = "".join(f", {n} left out ({why})" for why, n in result.num_left_out.items())
        console.stdout.print(
            f"{result.step} of {result.num_steps} steps{told}, {result.num_rollouts}"
            f" rollouts{left_out}, {result.wall_s:.1f} s",
            markup=False,
        )
        console.stdout.print(f"{result.model or folder}", markup=False, soft_wrap=True)
    if result.model is None:
        print_how_to_go_on(result.kind, result.step, args, folder)
