"""Registers the built-in formats the way any plugin registers its own.

Not here: what an exporter is (`katgym.rollout_store.exporting`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl

FORMATS = {
    "messages": "chat messages, a row for each path of a session (SFT)",
    "prompt-completion": "messages and the answer to them, a row for each call (SFT)",
    "trl": "token ids, labels and log-probs for TRL's SFTTrainer and rollout functions",
    "verl": "token ids, mask and log-probs with the names of verl's agent loops",
    "rollouts": "whole rollouts as `katgym eval` writes them, for `katgym train`",
    "rows": "the fields of katgym_trainer.Row",
}


@hookimpl
def katgym_register_exporters(register: RegisterNamed) -> None:
    """Register every built-in format."""
    for name, description in FORMATS.items():
        module = f"katgym.rollout_store.exporters.{name.replace('-', '_')}_format"
        register(name, f"{module}:EXPORTER", description=description)
