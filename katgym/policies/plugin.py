"""Registers the built-in policies the way any plugin registers its own.

Not here: what they are (`uri.py` lists them).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl
from katgym.policies.uri import BUILTIN_POLICIES

DESCRIPTIONS = {
    "oracle": "plays the env's own solution; oracle?max_calls=1: one tool call a turn",
    "noop": "answers with empty messages",
    "random": "plays random actions",
    "scripted": "scripted:FILE plays the actions in a file",
    "hf": "hf:MODEL runs a transformers model in this process",
    "smollm2": "SmolLM2-135M-Instruct from PyPI, on a CPU",
    "vllm": "vllm:URL#MODEL plays through a vLLM server",
    "openai": "openai:URL#MODEL plays through a chat API, without tokens",
}


@hookimpl
def katgym_register_policies(register: RegisterNamed) -> None:
    """Register every built-in scheme."""
    for scheme, entry_point in BUILTIN_POLICIES.items():
        register(scheme, entry_point, description=DESCRIPTIONS[scheme])
