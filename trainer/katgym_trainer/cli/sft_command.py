"""Train a model on what rollouts answered: supervised fine-tuning.

CONFIG is a TOML file; docs/guides/train.md shows one. Rollouts come from run folders of
`katgym eval`, from files of rollouts, or from the envs' own solutions. Ctrl-C finishes the step and
saves a checkpoint; the same command goes on from there.

example:
  katgym train sft sft.toml --out runs/sft
"""

from __future__ import annotations

import functools

from katgym_trainer.cli.run_arguments import add_run_arguments, run_recorded

add_arguments = add_run_arguments
run = functools.partial(run_recorded, "sft")
