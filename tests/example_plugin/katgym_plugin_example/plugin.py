"""Registers the plugin's env; imported with katgym, so it imports nothing but katgym."""

import katgym
from katgym.hookspecs import RegisterEnv

katgym_api_version = 1


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    register(
        "example/CountLetters-v0",
        "katgym_plugin_example.env:CountLetters",
        description="How often does a letter occur in a word?",
    )
