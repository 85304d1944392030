"""Train a model on rollouts that succeeded and on those of teachers: reinforcement fine-tuning.

Rollouts with a reward under min_reward (1.0) are left out; those of teachers, which may be ground
truths, are not. What is left of a task weighs as much as what is left of any other, and so do its
teachers' rollouts, times teacher_weight. The loss is that of `sft`; no rollout is made. CONFIG is a
TOML file; docs/guides/train.md shows one.

example:
  katgym train rft rft.toml --out runs/rft
"""

from __future__ import annotations

import functools

from katgym_trainer.cli.run_arguments import add_run_arguments, run_recorded

add_arguments = add_run_arguments
run = functools.partial(run_recorded, "rft")
