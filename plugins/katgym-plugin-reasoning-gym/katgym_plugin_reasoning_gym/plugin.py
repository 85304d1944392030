"""Registers an env per dataset. Not here: the env (`env.py`); what is left out (`datasets.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv
from katgym_plugin_reasoning_gym.datasets import DATASETS, env_name


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    for dataset in DATASETS:
        register(
            f"reasoning_gym/{env_name(dataset)}-v1",
            "katgym_plugin_reasoning_gym.env:ReasoningGym",
            description=f"reasoning-gym's {dataset!r}: one question, graded right or wrong.",
            kwargs={"dataset": dataset},
            extra="katgym-plugin-reasoning-gym",
        )
