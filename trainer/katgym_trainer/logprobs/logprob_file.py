"""Blocks of log-probs in one SQLite file, which several processes may have open at once.

A write is a transaction: one that is interrupted leaves what was there. Blocks written by two
processes are merged. Not here: which blocks are written and when (`logprob_cache.py`).

The file has to lie on a disk of this machine: its write-ahead log does not work over a network
(https://www.sqlite.org/wal.html). SQLite notices a file that is cut short or of another kind, not
a log-prob that was changed in place.

Letters: K tokens of one block.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from katgym_trainer.logprobs.logprob_block import BlockKey, merge
from katgym_trainer.row import Floats

_APPLICATION_ID = 0x6B617467  # "katg"
_FORMAT = 1
_CREATE = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
CREATE TABLE blocks (
    version TEXT NOT NULL,
    digest BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    PRIMARY KEY (version, digest)
);
"""
_READ = "SELECT logprobs FROM blocks WHERE version = ? AND digest = ?"
_WRITE = """
INSERT INTO blocks VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET logprobs = merged(logprobs, excluded.logprobs)
"""
_FORGET = "DELETE FROM blocks WHERE version = ?"


class LogprobFile:
    """An open file of blocks, to be closed; used by the thread that made it alone."""

    def __init__(self, path: Path, *, timeout_s: float = 60.0) -> None:
        """Open a file, made if there is none.

        timeout_s: how long a write waits for the writes of other processes.

        Raises `ValueError` for a file that is damaged or not one of these, and leaves it as it is.
        Every method raises `OSError` for a file that cannot be read or written.
        """
        self._path = path.absolute()
        with self._errors_explained(), contextlib.ExitStack() as stack:
            if not self._path.exists():
                _create(self._path)
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                uri=True,
                timeout=timeout_s,
                isolation_level=None,
            )
            stack.enter_context(contextlib.closing(connection))
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
            if application_id != _APPLICATION_ID:
                raise ValueError(
                    f"{str(self._path)!r} is no file of log-probs: move it away, or use another"
                    " folder"
                )
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _FORMAT:
                raise ValueError(
                    f"{str(self._path)!r} has format {version}, allowed is {_FORMAT}: use another"
                    " folder"
                )
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.create_function(
                "merged",
                2,
                lambda known, more: merge(_floats(known), _floats(more)).astype("<f8").tobytes(),
                deterministic=True,
            )
            self._connection = connection
            stack.pop_all()

    def close(self) -> None:
        """Close the file; a second time changes nothing."""
        self._connection.close()

    def read(self, key: BlockKey) -> Floats | None:
        """Return what is known of a block, [K] with NaN for what is not; None: nothing is."""
        with self._errors_explained():
            row = self._connection.execute(_READ, key).fetchone()
        return None if row is None else _floats(row[0])

    def write(self, blocks: Iterable[tuple[BlockKey, Floats]]) -> None:
        """Add blocks, all or none; log-probs that the file knows stay as they are."""
        rows = ((*key, logprobs_K.astype("<f8").tobytes()) for key, logprobs_K in blocks)
        with self._errors_explained(), self._transaction():
            self._connection.executemany(_WRITE, rows)

    def forget(self, version: str) -> None:
        """Drop the blocks of a version; their room in the file is used again, not given back."""
        with self._errors_explained(), self._transaction():
            self._connection.execute(_FORGET, (version,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection:  # commits, or rolls back
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    @contextlib.contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as e:
            if getattr(e, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_CORRUPT,
                sqlite3.SQLITE_NOTADB,
            ):
                raise ValueError(
                    f"{str(self._path)!r} is damaged or no file of log-probs ({e}): move it away,"
                    " with its -wal and -shm, or use another folder"
                ) from e
            raise OSError(f"{str(self._path)!r}: {e}") from e


def _create(path: Path) -> None:
    """Make an empty file of blocks; it appears whole, and never in place of another."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".logprobs-") as folder:
        fresh = Path(folder, path.name)
        with contextlib.closing(sqlite3.connect(fresh)) as connection:
            connection.executescript(_CREATE)
        with contextlib.suppress(FileExistsError):  # another process was first
            path.hardlink_to(fresh)


def _floats(blob: bytes) -> Floats:
    return np.frombuffer(blob, dtype="<f8").astype(np.float64)
