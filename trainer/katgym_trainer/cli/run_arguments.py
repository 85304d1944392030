"""Arguments of training runs, and what is printed of a run.

Not here: the subcommands.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError

if TYPE_CHECKING:
    from katgym_trainer.cli.rl_progress import RlProgress
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.config.run_config import RunConfig
    from katgym_trainer.runs.pipeline_run import PipelineResult
    from katgym_trainer.runs.training_run import RunResult, TrainingRun


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and the options."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    add_option(parser, "out", "the run's folder (runs/NAME-OF-CONFIG)")
    again = "refuse a folder that holds no run to go on with"
    add_option(parser, "resume", again, action="store_true")
    add_option(parser, "steps", "steps in all, in place of the file's", type=int, metavar="N")
    add_option(parser, "set", "in place of the file's, such as train.seed=1")
    add_option(parser, "json")


def run_folder(args: argparse.Namespace) -> Path:
    """Return the run's folder; `UsageError` for options that no run can have."""
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps is an int >= 1, got {args.steps!r}")
    folder: Path | None = args.out
    return folder or Path("runs") / str(args.config.stem)


def run_recorded(kind: str, args: argparse.Namespace) -> int:
    """Train on recorded rollouts, as `sft` and `rft` do; see `run_one`."""
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
    from katgym_trainer.runs.train_run import TrainRun

    folder = run_folder(args)
    config = TrainRunConfig.read(
        args.config, kind=TrainKind(kind), num_steps=args.steps, settings=args.settings
    )
    return run_one(TrainRun, config, folder, args, TrainProgress(console.stderr))


def run_one(
    run: type[TrainingRun[Any, Any]],
    config: RunConfig,
    folder: Path,
    args: argparse.Namespace,
    progress: RlProgress | TrainProgress,
) -> int:
    """Train and print what came of it; return the exit code."""
    from katgym.config.toml_files import kept_text

    with progress:
        result: RunResult = run.execute(
            config,
            folder,
            config_text=kept_text(args.config, args.settings),
            observer=progress,
            is_resume=args.resume,
        )
    from katgym_trainer.ranks.ranks import is_first_started  # imports torch

    if not is_first_started():
        return result.exit_code
    print_result(result, [result.describe()], args)
    if result.model is None:
        print_how_to_go_on(result.kind, result.step, args)
    return result.exit_code


def print_result(
    result: RunResult | PipelineResult, lines: Sequence[str], args: argparse.Namespace
) -> None:
    """Print lines about a run and where its model lies, or all of it as JSON."""
    if args.json:
        console.print_json(result.to_json())
        return
    for line in (*lines, result.model or str(run_folder(args))):
        console.stdout.print(line, markup=False, soft_wrap=True)


def print_how_to_go_on(kind: str, step: int, args: argparse.Namespace) -> None:
    """Tell the command that goes on with a run that was stopped."""
    command = ["katgym", "train", kind, str(args.config), "--out", str(run_folder(args))]
    if args.steps is not None:
        command += ["--steps", str(args.steps)]
    for setting in args.settings:
        command += ["--set", setting]
    text = f"stopped after step {step}; go on with: {shlex.join(command)}"
    console.stderr.print(text, markup=False, soft_wrap=True)
