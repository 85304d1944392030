"""Subcommands of `katgym vllm`, one module each."""
