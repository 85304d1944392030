"""Katgym's own policies, sandbox backends and export formats, registered the way a plugin's are.

It lies beside their packages, which `import katgym` need not load. Not here: what they are
(`policies/`, `sandbox/`, `rollout_store/exporters/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl

POLICIES = {
    "oracle": (
        "katgym.policies.action_policy:oracle",
        "plays the env's own solution; oracle?max_calls=1: one tool call a turn",
    ),
    "noop": ("katgym.policies.action_policy:noop", "answers with empty messages"),
    "random": ("katgym.policies.action_policy:random_play", "plays random actions"),
    "scripted": (
        "katgym.policies.scripted:from_uri",
        "scripted:FILE plays the actions in a file",
    ),
    "hf": (
        "katgym.policies.hf:from_uri",
        "hf:MODEL runs a transformers model in this process",
    ),
    "smollm2": (
        "katgym.policies.hf.hf_policy:smollm2_from_uri",
        "SmolLM2-135M-Instruct from PyPI, on a CPU",
    ),
    "vllm": (
        "katgym.policies.endpoints.vllm_client:from_uri",
        "vllm:URL#MODEL plays through a vLLM server",
    ),
    "openai": (
        "katgym.policies.endpoints.openai_chat:from_uri",
        "openai:URL#MODEL plays through a chat API, without tokens",
    ),
}
"""Scheme -> what is called with the text behind it, and what it does."""

SANDBOXES = {
    "local": (
        "katgym.sandbox.local.backend:LocalBackend",
        "Linux namespaces on this machine; no daemon, nothing to install",
    ),
    "docker": (
        "katgym.sandbox.docker_engine.backend:DockerBackend",
        "containers of a Docker Engine",
    ),
    "sandboxd": (
        "katgym.sandbox.remote.fleet:connect",
        "sandboxd:URL, the sandboxes of another machine that runs `katgym sandboxd`; URL,URL,... or"
        " @FILE: of many",
    ),
}
EXPORTERS = {
    "messages": (
        "katgym.rollout_store.exporters.chat_formats:MESSAGES",
        "chat messages, a row for each path of a session (SFT)",
    ),
    "prompt-completion": (
        "katgym.rollout_store.exporters.chat_formats:PROMPT_COMPLETION",
        "messages and the answer to them, a row for each call (SFT)",
    ),
    "trl": (
        "katgym.rollout_store.exporters.token_formats:TRL",
        "token ids, labels and log-probs for TRL's SFTTrainer and rollout functions",
    ),
    "verl": (
        "katgym.rollout_store.exporters.token_formats:VERL",
        "token ids, mask and log-probs with the names of verl's agent loops",
    ),
    "rollouts": (
        "katgym.rollout_store.exporters.chat_formats:ROLLOUTS",
        "whole rollouts as `katgym eval` writes them, for `katgym train`",
    ),
    "atif": (
        "katgym.rollout_store.atif.writing:ATIF",
        "trajectories of ATIF 1.8, Harbor's format, one for each path of a session (SFT)",
    ),
    "rows": (
        "katgym.rollout_store.exporters.token_formats:ROWS",
        "the fields of katgym_trainer.Row",
    ),
}


@hookimpl
def katgym_register_policies(register: RegisterNamed) -> None:
    """Register every built-in scheme."""
    for name, (entry_point, description) in POLICIES.items():
        register(name, entry_point, description=description)


@hookimpl
def katgym_register_sandboxes(register: RegisterNamed) -> None:
    """Register every built-in backend."""
    for name, (entry_point, description) in SANDBOXES.items():
        register(name, entry_point, description=description)


@hookimpl
def katgym_register_exporters(register: RegisterNamed) -> None:
    """Register every built-in format."""
    for name, (entry_point, description) in EXPORTERS.items():
        register(name, entry_point, description=description)


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym demo`: here, so that plugins can add demos of their own."""
    register(
        "demo",
        "katgym.cli.demo.demo_command:add_arguments",
        description="watch a small language model play; demo train: watch one learn",
    )
