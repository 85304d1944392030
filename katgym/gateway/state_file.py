"""What a gateway knows beside its sessions, kept over restarts: the version of the weights.

Not here: sessions and calls (`katgym.rollout_store`).
"""

from __future__ import annotations

import json
from pathlib import Path

from katgym.errors import UsageError
from katgym.storage import write_atomically

NAME = "gateway.json"


def read_version(folder: Path) -> int:
    """Return the version that a store's last gateway had; 0 for none.

    Raises `UsageError` for a file that cannot be read.
    """
    path = folder / NAME
    try:
        version = json.loads(path.read_bytes())["version"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(
            f"{str(path)!r} cannot be read ({e}); delete it, and tell the gateway the version of"
            " the weights with POST /control/resume"
        ) from e
    if type(version) is not int or version < 0:
        raise UsageError(f"{str(path)!r} holds version {version!r}, which is no number >= 0")
    return version


def write_version(folder: Path, version: int) -> None:
    """Keep a version; `InfrastructureError` if it cannot be written."""
    write_atomically(folder / NAME, json.dumps({"version": version}).encode() + b"\n")
