"""The options that say what is played and how, of every command that plays a plan.

Not here: where the rollouts go (each command's own).
"""

from __future__ import annotations

from collections.abc import Sequence

from katgym.cli.options import ConfigOptions
from katgym.evaluation.plan import EvalConfig


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
        defaults={"split": split},
    )  # fmt: skip
