"""Registers the env; imports neither it nor Pillow. Not here: the env (`env.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `web/Pages-v0`."""
    register(
        "web/Pages-v0",
        "katgym_plugin_web.env:WrittenPages",
        description="Web pages to be written (Apache-2.0), judged by hidden play in a browser.",
        extra="katgym-plugin-web",
    )
