"""Arguments of training runs, and the runs of `katgym train sft` and `rft`.

Not here: the subcommands.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError

if TYPE_CHECKING:
    pass


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and the options."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    add_option(parser, "out", "the run's folder (runs/NAME-OF-CONFIG)")
    again = "refuse a folder that holds no run to go on with"
    add_option(parser, "resume", again, action="store_true")
    add_option(parser, "steps", "steps in all, in place of the file's", type=int, metavar="N")
    add_option(parser, "set", "in place of the file's, such as train.seed=1")
    add_option(parser, "json")


def run_kind(kind: str, args: argparse.Namespace) -> int:
    """Train and print what came of it; return the exit code."""
    from katgym.config.toml_files import kept_text
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
    from katgym_trainer.runs.train_run import train_run

    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps is an int >= 1, got {args.steps!r}")
    config = TrainRunConfig.read(
        args.config, kind=TrainKind(kind), num_steps=args.steps, settings=args.settings
    )
    folder = args.out or Path("runs") / args.config.stem
    with TrainProgress(console.stderr) as progress:
        result = train_run(
            config,
            folder,
            config_text=kept_text(args.config, args.settings),
            observer=progress,
            is_resume=args.resume,
        )
    if args.json:
        console.print_json(result.to_json())
    else:
        loss = result.metrics.get("train/loss")
        loss_text = "" if loss is None else f", loss {loss:.4f}"
        left_out = "".join(f", {n} left out ({why})" for why, n in result.num_left_out.items())
        console.stdout.print(
            f"{result.step} of {result.num_steps} steps{loss_text}, {result.num_rollouts}"
            f" rollouts{left_out}, {result.wall_s:.1f} s",
            markup=False,
        )
        console.stdout.print(f"{result.model or folder}", markup=False, soft_wrap=True)
    if result.model is None:
        print_how_to_go_on(result.kind, result.step, args, folder)
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
