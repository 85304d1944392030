"""Train a model by reinforcement: it plays environments, and learns from what succeeded.

CONFIG is a TOML file; docs/guides/train-rl.md shows one. The model plays in this process, or on a
vLLM server that gets its weights after every step. A file with [[stage]] tables runs one stage
after the other, as in sft, then rl. Ctrl-C finishes the step and saves a checkpoint; the same
command goes on from there, also after a crash.

example:
  katgym train rl rl.toml --out runs/rl
  katgym train rl rl.toml --out runs/rl --steps 200
  katgym train rl rl.toml --out runs/rl-1 --set train.seed=1
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.errors import UsageError
from katgym_trainer.cli.run_arguments import add_run_arguments, print_how_to_go_on

if TYPE_CHECKING:
    from katgym_trainer.rl.rl_run import RlResult
    from katgym_trainer.runs.train_run import TrainResult


add_arguments = add_run_arguments


def run(args: argparse.Namespace) -> int:
    """Train and print what came of it."""
    from katgym.config.toml_files import kept_text, read_toml
    from katgym_trainer.cli.rl_progress import RlProgress
    from katgym_trainer.config.rl_config import RlConfig
    from katgym_trainer.rl.rl_run import rl_run

    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps is an int >= 1, got {args.steps!r}")
    raw = read_toml(args.config, args.settings)
    if "stage" in raw:
        return _run_stages(raw, args)
    config, folder = RlConfig.of(raw, name=args.config.name, num_steps=args.steps), _folder(args)
    with RlProgress(console.stderr) as progress:
        result = rl_run(
            config,
            folder,
            config_text=kept_text(args.config, args.settings),
            observer=progress,
            is_resume=args.resume,
        )
    if args.json:
        console.print_json(result.to_json())
    else:
        console.stdout.print(f"{_describe(result)}, {result.wall_s:.1f} s", markup=False)
        console.stdout.print(f"{result.model or folder}", markup=False, soft_wrap=True)
    if result.model is None:
        print_how_to_go_on("rl", result.step, args, folder)
    return result.exit_code


def _run_stages(raw: Mapping[str, Any], args: argparse.Namespace) -> int:
    from katgym.config.toml_files import kept_text
    from katgym_trainer.cli.stage_progress import StageProgress
    from katgym_trainer.config.pipeline_config import PipelineConfig
    from katgym_trainer.runs.pipeline_run import pipeline_run

    if args.steps is not None or args.resume:
        option = "--resume" if args.resume else "--steps"
        raise UsageError(f"{option} is for a run of one stage; {args.config.name} has stages")
    config, folder = PipelineConfig.of(raw, name=args.config.name), _folder(args)
    with StageProgress(console.stderr) as progress:
        result = pipeline_run(
            config, folder, config_text=kept_text(args.config, args.settings), observer=progress
        )
    if args.json:
        console.print_json(result.to_json())
    else:
        for stage in result.stages:
            text = f"{stage.folder}: {_describe(stage)}, {stage.wall_s:.1f} s"
            console.stdout.print(text, markup=False, soft_wrap=True)
        console.stdout.print(f"{result.model or folder}", markup=False, soft_wrap=True)
    if result.model is None:
        print_how_to_go_on("rl", result.stages[-1].step, args, folder)
    return result.exit_code


def _folder(args: argparse.Namespace) -> Path:
    folder: Path | None = args.out
    return folder or Path("runs") / str(args.config.stem)


def _describe(result: RlResult | TrainResult) -> str:
    """Return what came of a stage in words."""
    parts = [f"{result.step} of {result.num_steps} steps"]
    for name, word in (("train/loss", "loss"), ("rollout/success", "success")):
        if name in result.metrics and (word == "success") == (result.kind == "rl"):
            parts.append(f"{word} {result.metrics[name]:.3f}")
    best = getattr(result, "best", None)
    if best is not None:
        parts.append(f"held-out {best['success']:.3f} at best (step {best['step']:.0f})")
    return ", ".join(parts)
