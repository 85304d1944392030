"""What a gateway knows beside its sessions, kept over restarts.

Not here: sessions and calls (`katgym.rollout_store`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.storage import write_atomically

NAME = "gateway.json"
MAX_REPLACED_KEYS = 1000
"""That are kept: requests are told again after a trainer was killed, which are the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """What is kept.

    Example:
        GatewayState(version=12, num_replaced=8, replaced_keys=("group-17", "group-20"))
    """

    version: int = 0
    """Of the weights."""
    num_replaced: int = 0
    """Sessions that have begun, and do not count for how many may."""
    replaced_keys: tuple[str, ...] = ()
    """Of the last requests that told so; one that is told again changes nothing."""

    def with_replaced(self, num_sessions: int, key: str) -> GatewayState:
        """Return this with so many more sessions replaced, or itself if the key told so before."""
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
        raw = json.loads(path.read_bytes())
        state = GatewayState(
            version=raw["version"],
            num_replaced=raw["num_replaced"],
            replaced_keys=tuple(_texts(raw.get("replaced_keys", []))),
        )
    except FileNotFoundError:
        return GatewayState()
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(
            f"{str(path)!r} cannot be read ({e!r}); delete it, and tell the gateway the version of"
            " the weights with POST /control/resume"
        ) from e
    for name, value in (("version", state.version), ("num_replaced", state.num_replaced)):
        if type(value) is not int or value < 0:
            raise UsageError(f"{str(path)!r} holds {name} {value!r}, which is no number >= 0")
    return state


def _texts(found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"replaced_keys is a list of texts, got {found!r:.100}")
    return found


def write_state(folder: Path, state: GatewayState) -> None:
    """Keep a state; `InfrastructureError` if it cannot be written."""
    write_atomically(folder / NAME, json.dumps(asdict(state)).encode() + b"\n")
