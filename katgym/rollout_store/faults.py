"""Errors of a store's files, in words that name the file and what to do.

Not here: mistakes in what is written (`encoding.py`, `live.py`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import DiskFullError, InfrastructureError, UsageError

_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class CorruptStoreError(UsageError):
    """A file of a store cannot be read; the text names it and says what to do."""


@contextlib.contextmanager
def sqlite_faults(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into `CorruptStoreError` or `InfrastructureError`, naming the file."""
    try:
        yield
    except sqlite3.DatabaseError as e:
        extended = getattr(e, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code in _CORRUPT:
            raise corrupt_database(path, str(e)) from e
        if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
            raise DiskFullError(
                str(path), "what was written before is safe: free some space"
            ) from e
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            why = "other processes kept it locked for too long; try again with fewer writers"
        else:
            why = str(e)
        raise InfrastructureError(f"cannot use {str(path)!r}: {why}") from e
    except UnicodeEncodeError as e:
        raise UsageError(f"text that is kept must be Unicode without lone surrogates: {e}") from e
    except OverflowError as e:
        raise UsageError(f"integers that are kept have to fit 64 bits: {e}") from e


def corrupt_database(path: Path, why: str) -> CorruptStoreError:
    """Return the error for a database that cannot be read."""
    return CorruptStoreError(
        f"the database {str(path)!r} is corrupt: {why}. Finished rollouts are safe in"
        f" {str(path.parent / 'finished')!r}. Hint: move the database away together with its -wal"
        f" and -shm files and open the store again, or save what can be read with sqlite3"
        f" {str(path)!r} .recover"
    )


def corrupt_shard(path: Path, why: str) -> CorruptStoreError:
    """Return the error for a shard that cannot be read."""
    name = path.stem.partition("-")[2]
    return CorruptStoreError(
        f"the shard {str(path)!r} cannot be read: {why}. Other shards are not touched by this."
        f" Hint: restore the file from a copy, or give its sessions up with katgym rollouts gc"
        f" {str(path.parent.parent)!r} --drop-shard {name}"
    )
