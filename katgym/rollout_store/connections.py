"""Connections to a store's SQLite file (WAL): one writes, one reads, one checkpoints.

A transaction is with the operating system when it is committed: it outlives a kill of the process,
and a crash of the machine costs at most the last ones (`is_durable=True` waits for the disk).
Several processes may do this at the same time; writers wait for each other.

Not here: the statements (`live.py`); tables (`schema.py`).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import InfrastructureError, KatgymError
from katgym.rollout_store.faults import sqlite_faults
from katgym.rollout_store.schema import BEGIN_EPOCH

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 60.0
_CHECKPOINT_BYTES = 8 * 2**20
"""Written by this process since its last checkpoint; then the next one begins."""
_MAX_WAL_BYTES = 64 * 2**20
"""With a longer log writers wait a moment, so that it is begun anew."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection whose transactions are begun by hand."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 0",
                       "cache_size = -16384"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise
    return connection


class Connections:
    """Two connections, each with a lock, so that threads may share them.

    Example:
        with connections.write() as connection:
            connection.execute("UPDATE ...")
    """

    def __init__(self, path: Path) -> None:
        """Open them; the database has its tables already."""
        self.path = path
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        with sqlite_faults(path):
            self._writer = connect(path)
            try:
                self._reader = connect(path)
            except BaseException:
                self._writer.close()
                raise
        self._checkpoints = Checkpoints(path)
        self._has_epoch = False
        self.is_closed = False

    @contextlib.contextmanager
    def write(self, *, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Hold the database's one write transaction; committed at the end, undone by an error.

        is_durable: it is on the disk when this returns.
        """
        with self._write_lock, sqlite_faults(self.path):
            self._check_open()
            writer = self._writer
            if is_durable:
                writer.execute("PRAGMA synchronous = FULL")
            try:
                writer.execute("BEGIN IMMEDIATE")
                try:
                    if not self._has_epoch:
                        writer.execute(BEGIN_EPOCH)
                    yield writer
                    writer.execute("COMMIT")
                    self._has_epoch = True
                except BaseException:
                    if writer.in_transaction:
                        writer.execute("ROLLBACK")
                    raise
            finally:
                if is_durable:
                    writer.execute("PRAGMA synchronous = NORMAL")

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Look at one state of the database, whatever others write meanwhile."""
        with self._read_lock, sqlite_faults(self.path):
            self._check_open()
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def written(self, num_bytes: int) -> None:
        """Tell how much was committed; another thread moves it from the log to the database."""
        self._checkpoints.written(num_bytes)

    def vacuum(self) -> None:
        """Give the space of deleted rows back to the file system; writers wait."""
        with self._write_lock, sqlite_faults(self.path):
            self._check_open()
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close everything; may be called twice."""
        self._checkpoints.stop()
        with self._write_lock, self._read_lock:
            if not self.is_closed:
                self.is_closed = True
                self._reader.close()
                self._writer.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise InfrastructureError(f"the rollout store at {str(self.path.parent)!r} is closed")


class Checkpoints:
    """A thread that moves what the log holds into the database, so that no caller has to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._is_due = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def written(self, num_bytes: int) -> None:
        """Count bytes; starts the thread when there is first something to do."""
        with self._lock:
            self._num_bytes += num_bytes
            if self._num_bytes < _CHECKPOINT_BYTES or self._is_stopping:
                return
            self._num_bytes = 0
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rollout-store-checkpoints", daemon=True
                )
                self._thread.start()
        self._is_due.set()

    def stop(self) -> None:
        """End the thread; may be called twice."""
        with self._lock:
            self._is_stopping = True
        self._is_due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._is_due.wait() and not self._is_stopping:
            self._is_due.clear()
            try:
                with sqlite_faults(self._path):
                    self._checkpoint()
            except (KatgymError, OSError) as e:  # callers go on, the log grows
                logger.warning("the log of %s stays as it is for now: %s", self._path, e)

    def _checkpoint(self) -> None:
        with contextlib.closing(connect(self._path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            log = self._path.with_name(self._path.name + "-wal")
            if log.stat().st_size > _MAX_WAL_BYTES:
                connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
