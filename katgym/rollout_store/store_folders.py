"""Stores of several gateways in one folder, a sub-folder each, and which of them has a session.

Not here: the gateways (`katgym.gateway.shards`); the Parquet files of one store (`shards.py`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from katgym.errors import UsageError
from katgym.rollout_store.store import GATEWAYS, RolloutStore
from katgym.system import write_atomically


def store_folders(folder: Path | str) -> list[Path]:
    """Return the folders of the stores that a folder holds: itself, or one for each gateway.

    Raises `UsageError` for a folder whose note of them cannot be read.
    """
    folder = Path(folder)
    num_shards = num_shards_of(folder)
    return [folder / f"gateway-{index}" for index in range(num_shards)] or [folder]


def num_shards_of(folder: Path) -> int:
    """Return how many gateways share a folder; 0 for one that is a store, or nothing yet."""
    path = folder / GATEWAYS
    try:
        return int(msgspec.json.decode(path.read_bytes(), type=dict[str, int])["num_shards"])
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError, KeyError) as e:
        num_found = len(list(folder.glob("gateway-*")))
        raise UsageError(
            f"{str(path)!r} cannot be read ({e}): it says how many gateways share the folder. Write"
            f' {{"num_shards": {num_found}}} there, if none of its {num_found} stores is missing'
        ) from e


def prepare_folder(folder: Path, num_shards: int) -> None:
    """Make a folder one of so many stores; `UsageError` for one that is something else."""
    if RolloutStore.is_at(folder):
        raise UsageError(
            f"{str(folder)!r} is the store of one gateway, and {num_shards} gateways have a folder"
            " of stores: name another folder, or leave out --shards"
        )
    known = num_shards_of(folder)
    if known and known != num_shards:
        raise UsageError(
            f"{str(folder)!r} holds the stores of {known} gateways, among which its sessions are"
            f" divided: go on with --shards {known}, or name another folder"
        )
    if not known:
        write_atomically(folder / GATEWAYS, msgspec.json.encode({"num_shards": num_shards}) + b"\n")


def shard_of(session_id: str, num_shards: int) -> int:
    """Return which of so many gateways has a session, by its id alone."""
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_shards
