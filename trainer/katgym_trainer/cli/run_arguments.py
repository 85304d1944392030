"""Arguments of training runs, and what is printed of a run.

Not here: the subcommands.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.cli.options import add_option
from katgym.cluster.cluster_config import ClusterConfig, is_placed
from katgym.errors import MissingDependencyError, UsageError
from katgym.policies.model_source import check_model
from katgym_trainer.config.presets import PRESETS
from katgym_trainer.fake_card.cards import find_card

if TYPE_CHECKING:
    from katgym_trainer.cli.rl_progress import RlProgress
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.config.pipeline_config import PipelineConfig
    from katgym_trainer.config.rl_config import RlConfig
    from katgym_trainer.config.run_config import RunConfig
    from katgym_trainer.config.train_run_config import TrainRunConfig
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
    add_option(parser, "dry-run", "first prompt, memory, steps, files")
    card = "kind of GPU that --dry-run counts a step for (the one that is here)"
    add_option(parser, "card", card)
    add_option(parser, "json")


def settings_of(args: argparse.Namespace) -> list[str]:
    """Return the settings in place of the file's: a preset's, and then those that are told."""
    preset = getattr(args, "preset", None)
    return [*(PRESETS[preset] if preset else ()), *args.settings]


def run_folder(args: argparse.Namespace) -> Path:
    """Return the run's folder; `UsageError` for options that no run can have."""
    if args.card is not None and not args.dry_run:
        raise UsageError(f"--card {args.card} changes nothing without --dry-run")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps is an int >= 1, got {args.steps!r}")
    folder: Path | None = args.out
    return folder or Path("runs") / str(args.config.stem)


def run_recorded(kind: str, args: argparse.Namespace) -> int:
    """Train on recorded rollouts, as `sft` and `rft` do; see `run_one`."""
    from katgym_trainer.cli.train_progress import TrainProgress
    from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig

    folder = run_folder(args)
    config = TrainRunConfig.read(
        args.config, kind=TrainKind(kind), num_steps=args.steps, settings=args.settings
    )
    check_models(config)
    if args.dry_run:
        return show_dry_run(config, folder, args)
    with training_imports():
        from katgym_trainer.runs.train_run import TrainRun
    return run_one(TrainRun, config, folder, args, TrainProgress(console.stderr))


def check_models(config: RunConfig) -> None:
    """Raise `UsageError` for a model or tokenizer that is not there."""
    for name in (config.model.path, config.model.tokenizer):
        try:
            check_model(name)
        except UsageError as e:
            raise UsageError(f"[model]: {e}") from e


@contextlib.contextmanager
def training_imports() -> Iterator[None]:
    """Tell what to install where an import of torch, or of what needs it, fails."""
    try:
        yield
    except MissingDependencyError:
        raise
    except ImportError as e:
        raise MissingDependencyError(
            f"training needs {e.name!r}. Install: pip install 'katgym[train]'"
        ) from e


def show_dry_run(
    config: RlConfig | TrainRunConfig | PipelineConfig, folder: Path, args: argparse.Namespace
) -> int:
    """Print what each stage of a run would do."""
    if args.card is not None:
        find_card(args.card)  # raises
    with training_imports():
        from katgym_trainer.dry_run.dry_run import dry_run

    stages = dry_run(config, folder, card=args.card)
    if args.json:
        console.print_json([dataclasses.asdict(stage) for stage in stages])
        return 0
    for stage in stages:
        console.stdout.print("\n".join([*stage.lines(), ""]), soft_wrap=True)
    return 0


def run_one(
    run: type[TrainingRun[Any, Any]],
    config: RunConfig,
    folder: Path,
    args: argparse.Namespace,
    progress: RlProgress | TrainProgress,
) -> int:
    """Train and print what came of it; return the exit code.

    Where [cluster] asks for ranks they do, and what they print is passed on.
    """
    from katgym.config.toml_files import kept_text
    from katgym_trainer.ranks.ranks import is_first_started, is_started  # imports torch

    if (cluster := config.cluster) is not None and cluster.trainer_ranks:
        if not is_started():
            return _run_gang(cluster, str(config.identity()["kind"]), folder, args)
        if not is_placed():
            raise UsageError(
                "torchrun started this process, and [cluster] trainer_ranks ="
                f" {cluster.trainer_ranks} starts processes, too: leave one out"
            )
    with progress:
        result: RunResult = run.execute(
            config,
            folder,
            config_text=kept_text(args.config, settings_of(args)),
            observer=progress,
            is_resume=args.resume,
        )
    if not is_first_started():
        return result.exit_code
    print_result(result, [result.describe()], args)
    if result.model is None:
        print_how_to_go_on(result.kind, result.step, args)
    return result.exit_code


def _run_gang(cluster: ClusterConfig, kind: str, folder: Path, args: argparse.Namespace) -> int:
    """Have the ranks run this command on a cluster; return their exit code."""
    from katgym.cluster.rank_gang import RankGang  # imports Ray
    from katgym_trainer.saving import checkpoints

    def find_step() -> int:
        path = checkpoints.newest(folder / "checkpoints")
        return 0 if path is None else int(path.name.rpartition("-")[2])

    arguments = _command(kind, args, folder=folder.absolute())[1:]
    arguments += [option for option in ("--json", "--resume") if getattr(args, option[2:])]
    if logging.getLogger("katgym").isEnabledFor(logging.DEBUG):
        arguments.append("-v")
    gang = RankGang(cluster, arguments, folder=folder, needs=[args.config], find_step=find_step)
    return gang.run()


def _command(kind: str, args: argparse.Namespace, *, folder: Path) -> list[str]:
    command = ["katgym", "train", kind, str(args.config), "--out", str(folder)]
    if getattr(args, "preset", None):
        command += ["--preset", args.preset]
    if args.steps is not None:
        command += ["--steps", str(args.steps)]
    for setting in args.settings:
        command += ["--set", setting]
    return command


def print_result(
    result: RunResult | PipelineResult, lines: Sequence[str], args: argparse.Namespace
) -> None:
    """Print lines about a run and where its model lies, or all of it as JSON."""
    if args.json:
        console.print_json(result.to_json())
        return
    for line in (*lines, result.model or str(run_folder(args))):
        console.stdout.print(line, soft_wrap=True)


def print_how_to_go_on(kind: str, step: int, args: argparse.Namespace) -> None:
    """Tell the command that goes on with a run that was stopped."""
    command = _command(kind, args, folder=run_folder(args))
    text = f"stopped after step {step}; go on with: {shlex.join(command)}"
    console.stderr.print(text, soft_wrap=True)
