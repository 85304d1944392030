"""Stores of several gateways in one folder, a sub-folder each: which has a session, reading all.

Not here: the gateways (`katgym.gateway.shards`); the Parquet files of one store (`shards.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from katgym.errors import UsageError
from katgym.rollout_store.records import SessionRecord, SessionStatus, StoredSession
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


class StoreReader:
    """The stores that a folder holds, read as one; a context manager.

    Methods are those of `RolloutStore`. Sessions come in the order of their beginning.

    Example:
        with StoreReader.open("games") as reader:  # of one gateway, or of --shards 4
            print(reader.num_sessions())
    """

    def __init__(self, stores: Sequence[RolloutStore]) -> None:
        """stores: open, and closed by this."""
        self.stores = stores

    @staticmethod
    def is_at(folder: Path | str) -> bool:
        """Return whether a folder is a store, or holds those of several gateways."""
        return RolloutStore.is_at(folder) or num_shards_of(Path(folder)) > 0

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open all; `UsageError` for one that is missing or cannot be read."""
        with contextlib.ExitStack() as opened:
            stores = [
                opened.enter_context(RolloutStore.open(found, create=False))
                for found in store_folders(folder)
            ]
            opened.pop_all()
        return cls(stores)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self.stores:
            store.close()

    @property
    def num_left_out(self) -> int:
        """Times that a shard could not be read and was left out with a warning."""
        return sum(store.num_left_out for store in self.stores)

    def num_sessions(self) -> int:
        """Return how many sessions there are."""
        return sum(store.num_sessions() for store in self.stores)

    def sessions(self, *, without_groups: Collection[str] = ()) -> list[SessionRecord]:
        """Return all sessions."""
        found = [store.sessions(without_groups=without_groups) for store in self.stores]
        return found[0] if len(found) == 1 else sorted(itertools.chain(*found), key=_created_s)

    def each(self, statuses: Sequence[SessionStatus] | None = None) -> Iterator[StoredSession]:
        """Yield sessions with everything that is kept of them, store by store."""
        for store in self.stores:
            yield from store.each(statuses)

    def stored(self, session_id: str) -> StoredSession:
        """Return a session with everything that is kept of it."""
        return self.stored_many([session_id])[0]

    def stored_many(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Return sessions in the order asked for; `UnknownNameError` if one is not there."""
        *others, last = self.stores
        found: dict[str, StoredSession] = {}
        for store in others:
            own = [i for i in session_ids if i not in found and store.has_session(i)]
            found |= zip(own, store.stored_many(own), strict=True)
        left = [i for i in session_ids if i not in found]
        found |= zip(left, last.stored_many(left), strict=True)
        return [found[session_id] for session_id in session_ids]


def _created_s(record: SessionRecord) -> float:
    return record.created_s
