"""State of a gateway beside its sessions, kept over restarts.

Not here: sessions and calls (`katgym.rollout_store`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from katgym.errors import UsageError
from katgym.system import write_atomically

NAME = "gateway.json"
MAX_REPLACED_KEYS = 1000
"""That are kept: requests come again after a trainer was killed, which are the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """What is kept.

    Example:
        GatewayState(version=12, num_replaced=8, replaced_keys=("group-17", "group-20"))
    """

    version: Annotated[int, msgspec.Meta(ge=0)]
    """Of the weights."""
    num_replaced: Annotated[int, msgspec.Meta(ge=0)]
    """Sessions that have begun, and do not count for how many may."""
    replaced_keys: tuple[str, ...] = ()
    """Of the last requests for that; one that comes again changes nothing."""
    key_salt: str = ""
    """Goes into the keys of the store's sessions; "" before there is a gateway."""

    def with_replaced(self, num_sessions: int, key: str) -> GatewayState:
        """Return this with so many more sessions replaced, or itself if the key is known."""
        if not key:
            return replace(self, num_replaced=self.num_replaced + num_sessions)
        if key in self.replaced_keys:
            return self
        return replace(
            self,
            num_replaced=self.num_replaced + num_sessions,
            replaced_keys=(*self.replaced_keys, key)[-MAX_REPLACED_KEYS:],
        )


def read_state(folder: Path) -> GatewayState:
    """Return what a store's last gateway knew.

    Raises `UsageError` for a file that cannot be read.
    """
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=GatewayState)
    except FileNotFoundError:
        return GatewayState(version=0, num_replaced=0)
    except (OSError, ValueError) as e:
        raise UsageError(
            f"{str(path)!r} cannot be read ({e}); delete it, and tell the gateway the version of"
            " the weights with POST /control/resume"
        ) from e


def write_state(folder: Path, state: GatewayState) -> None:
    """Keep a state; `InfrastructureError` if it cannot be written."""
    write_atomically(folder / NAME, msgspec.json.encode(state) + b"\n")
