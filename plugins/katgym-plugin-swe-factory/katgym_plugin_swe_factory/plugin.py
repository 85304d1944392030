"""Registers the subcommands of `katgym swe` that make and check tasks; imports none of them.

Not here: the subcommands (`cli/`); those for players and graders (`katgym_envs.swe.cli`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl

SUBCOMMANDS = {
    "make": "make tasks from packages on PyPI; goes on where it was stopped",
    "from-prs": "make tasks from merged pull requests of a local clone",
    "import": "import rows of SWE-bench, SWE-smith or SWE-rebench",
    "check": "check that tasks can be solved, are hidden well and cannot be talked into a pass",
}
"""Subcommand of `katgym swe` -> its line of help; module `cli.<name>_command`."""


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register the subcommands."""
    for name, description in SUBCOMMANDS.items():
        module = f"katgym_plugin_swe_factory.cli.{name.replace('-', '_')}_command"
        register(f"swe {name}", f"{module}:add_arguments", description=description)
