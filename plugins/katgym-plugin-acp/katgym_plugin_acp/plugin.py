"""Registers policies `acp:COMMAND`; imports neither them nor the SDK.

Not here: the policy (`policy.py`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl


@hookimpl
def katgym_register_policies(register: RegisterNamed) -> None:
    """Register scheme `acp`."""
    register(
        "acp",
        "katgym_plugin_acp.policy:AcpPolicy",
        description="acp:COMMAND plays an agent that speaks the Agent Client Protocol",
    )
