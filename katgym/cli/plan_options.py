"""The options that say what is played and how, of every command that plays a plan.

Not here: where the rollouts go (each command's own).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from katgym import console, plugins
from katgym.cli.options import ConfigOptions
from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run_state import RunState


def plan_options(*, split: str, more: Sequence[str] = ()) -> ConfigOptions[EvalConfig]:
    """Return the options of an `EvalConfig`.

    split: the default one. more: fields that have an option too, where others leave them to --set.
    """
    return ConfigOptions(
        EvalConfig,
        positional=("envs",),
        flags=(
            "policy", "num_tasks", "group_size", "seed", "split", "max_concurrency",
            "sampling.temperature", "sampling.max_tokens", *more,
        ),
        names={"envs": "env", "max_concurrency": "concurrency"},
        defaults={"split": split, "policy": None},
        hidden=() if "tts" in more else ("tts",),
    )  # fmt: skip


def plan_config(options: ConfigOptions[EvalConfig], args: argparse.Namespace) -> EvalConfig:
    """Return what is played; `UsageError` that names the policies where none is given."""
    if args.policy is None:
        schemes = ", ".join(sorted(plugins.policy_schemes()))
        raise UsageError(
            f"--policy says who plays: one of {schemes}, as in --policy oracle or --policy"
            " 'openai:https://api.openai.com/v1#gpt-4.1-mini'"
        )
    return options.config(args)


def print_unfinished(*states: RunState) -> None:
    """Tell of each run that is not finished how far it is, and the command that goes on with it."""
    for state in states:
        if state.is_finished:
            continue
        arguments = plan_options(split="test", more=("tts",)).arguments(state.config)
        command = shlex.join(["katgym", "eval", *arguments, "--out", str(state.folder)])
        text = f"{state.folder} is unfinished: {state.missing}. Finish it with: {command}"
        console.stderr.print(text, style="yellow", soft_wrap=True)
