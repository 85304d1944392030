"""Train a model by reinforcement: it plays environments, and learns from what succeeded.

CONFIG is a TOML file; docs/guides/train-rl.md shows one. The model plays in this process, or on a
vLLM server that gets its weights after every step. A file with [[stage]] tables runs one stage
after the other, as in sft, then rl. Ctrl-C finishes the step and saves a checkpoint; the same
command goes on from there, also after a crash.

example:
  katgym train rl rl.toml --out runs/rl
  katgym train rl rl.toml --dry-run
  katgym train rl lora.toml --preset cpu --set model.path=models/tiny
  katgym train rl rl.toml --out runs/rl --steps 200
  katgym train rl rl.toml --out runs/rl-1 --set train.seed=1
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym_trainer.cli.run_arguments import (
    add_run_arguments,
    check_models,
    print_how_to_go_on,
    print_result,
    run_folder,
    run_one,
    settings_of,
    show_dry_run,
    training_imports,
)
from katgym_trainer.config.presets import PRESETS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    add_run_arguments(parser)
    sizes = "settings for a machine, before those of --set: for a GPU of so many GiB, or none"
    add_option(parser, "preset", sizes, choices=list(PRESETS))


def run(args: argparse.Namespace) -> int:
    """Train and print what came of it."""
    from katgym.config.toml_files import read_toml
    from katgym_trainer.cli.rl_progress import RlProgress
    from katgym_trainer.config.rl_config import RlConfig

    folder = run_folder(args)
    raw = read_toml(args.config, settings_of(args))
    if "stage" in raw:
        return _run_stages(raw, args)
    config = RlConfig.of(raw, name=args.config.name, num_steps=args.steps)
    check_models(config)
    if (args.preset or "").startswith("gpu"):
        logger.warning("preset %s was computed, not run on a GPU", args.preset)
    if args.dry_run:
        return show_dry_run(config, folder, args)
    with training_imports():
        from katgym_trainer.rl.rl_run import RlRun
    return run_one(RlRun, config, folder, args, RlProgress(console.stderr))


def _run_stages(raw: Mapping[str, Any], args: argparse.Namespace) -> int:
    from katgym.config.toml_files import kept_text
    from katgym_trainer.cli.stage_progress import StageProgress
    from katgym_trainer.config.pipeline_config import PipelineConfig

    if args.steps is not None or args.resume or args.preset:
        option = "--resume" if args.resume else "--preset" if args.preset else "--steps"
        raise UsageError(f"{option} is for a run of one stage; {args.config.name} has stages")
    config = PipelineConfig.of(raw, name=args.config.name)
    check_models(config.stages[0].config)
    if args.dry_run:
        return show_dry_run(config, run_folder(args), args)
    with training_imports():
        from katgym_trainer.runs.pipeline_run import pipeline_run
    text = kept_text(args.config, args.settings)
    with StageProgress(console.stderr) as progress:
        result = pipeline_run(config, run_folder(args), config_text=text, observer=progress)
    print_result(result, [f"{stage.folder}: {stage.describe()}" for stage in result.stages], args)
    if result.model is None:
        print_how_to_go_on("rl", result.stages[-1].step, args)
    return result.exit_code
