"""Registers the envs; imports neither them nor bfcl-eval. Not here: the envs themselves."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv

ENVS = {
    "Calls": ("calls:Calls", "one message of calls, or none, for questions made by hand"),
    "LiveCalls": ("calls:LiveCalls", "one message of calls, or none, for questions of users"),
    "MultiTurn": ("multi_turn:MultiTurn", "a user's requests in turn, over stateful services"),
}


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register an env per kind of episode."""
    for name, (path, what) in ENVS.items():
        register(
            f"bfcl/{name}-v0",
            f"katgym_plugin_bfcl.{path}",
            description=f"Function calling of BFCL v4 (Apache-2.0): {what}.",
            extra="katgym-plugin-bfcl",
        )
