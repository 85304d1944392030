"""Registers an env per domain; imports neither it nor inspect-evals. Not here: the env itself."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv

DOMAINS = {"airline": "an airline", "retail": "a shop", "telecom": "a phone company"}


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `tau2/Airline-v0`, `tau2/Retail-v0` and `tau2/Telecom-v0`."""
    for domain, what in DOMAINS.items():
        register(
            f"tau2/{domain.capitalize()}-v0",
            "katgym_plugin_tau2.env:Service",
            description=f"tau2 (MIT): customer service of {what}, graded by its database's state.",
            kwargs={"domain": domain},
            extra="katgym-plugin-tau2",
        )
