"""Registers the built-in formats the way any plugin registers its own.

Not here: what an exporter is (`katgym.rollout_store.exporting`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl

FORMATS = {
    "messages": (
        "chat_formats:MESSAGES",
        "chat messages, a row for each path of a session (SFT)",
    ),
    "prompt-completion": (
        "chat_formats:PROMPT_COMPLETION",
        "messages and the answer to them, a row for each call (SFT)",
    ),
    "trl": (
        "token_formats:TRL",
        "token ids, labels and log-probs for TRL's SFTTrainer and rollout functions",
    ),
    "verl": (
        "token_formats:VERL",
        "token ids, mask and log-probs with the names of verl's agent loops",
    ),
    "rollouts": (
        "chat_formats:ROLLOUTS",
        "whole rollouts as `katgym eval` writes them, for `katgym train`",
    ),
    "rows": ("token_formats:ROWS", "the fields of katgym_trainer.Row"),
}
"""Format -> where it is in `katgym.rollout_store.exporters`, and what it is."""


@hookimpl
def katgym_register_exporters(register: RegisterNamed) -> None:
    """Register every built-in format."""
    for name, (place, description) in FORMATS.items():
        register(name, f"katgym.rollout_store.exporters.{place}", description=description)
