"""Registers the env; imports neither it nor MiniWoB. Not here: the env (`env.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `miniwob/Pages-v0`."""
    register(
        "miniwob/Pages-v0",
        "katgym_plugin_miniwob.env:Pages",
        description="MiniWoB++ (MIT): small web pages in a browser, graded by the page.",
        extra="katgym-plugin-miniwob",
    )
