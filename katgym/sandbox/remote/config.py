"""Settings of a `katgym sandboxd`.

Not here: its command line (`katgym.cli.servers.sandboxd_command`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from katgym.errors import UsageError
from katgym.sandbox.remote.wire import LEASE_S

TOKEN_VARIABLE = "KATGYM_SANDBOXD_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxdConfig:
    """What a server offers its clients.

    Example:
        SandboxdConfig(sandbox="docker", max_sandboxes=64)
    """

    sandbox: str = "local"
    """Backend of the sandboxes: see katgym sandbox list."""
    max_sandboxes: int = 256
    """Sandboxes at a time, at most."""
    pythons: tuple[str, ...] = ()
    """An interpreter of this machine that clients may ask for (`SandboxSpec.python`)."""
    lease_s: float = LEASE_S
    """A client that is not heard of for so long has died."""

    def __post_init__(self) -> None:
        if self.max_sandboxes < 1:
            raise UsageError(f"max_sandboxes is at least 1, got {self.max_sandboxes!r}")
        if not 0 < self.lease_s < math.inf:
            raise UsageError(f"lease_s is a finite number of seconds > 0, got {self.lease_s!r}")
