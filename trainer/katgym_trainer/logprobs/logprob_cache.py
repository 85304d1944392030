"""Log-probs that were computed once, found again by token prefix and model version.

Not here: what makes tokens the same (`logprob_block.py`), the file (`logprob_file.py`), the model
(`logprob_reuse.py`).

Letters: T tokens of one row, K tokens of one block.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from katgym_trainer.logprobs.logprob_block import (
    BLOCK_SIZE,
    BlockKey,
    check_version,
    logprob_blocks,
    merge,
)
from katgym_trainer.logprobs.logprob_file import LogprobFile
from katgym_trainer.row import Floats, Row

_FILE_NAME = "logprobs.sqlite3"
_OVERHEAD = 400
"""About what Python spends on a block besides its numbers: a key, an array, places in tables."""
_MIN_BYTES = 8 * BLOCK_SIZE + _OVERHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """How much was found, and what is kept in memory.

    Example:
        CacheStats(num_hits=512, num_misses=512, num_blocks=20, num_bytes=18240, num_evicted=0)
    """

    num_hits: int
    """Trained tokens of rows that were looked up and found."""
    num_misses: int
    """Trained tokens of rows that were not: all of a row's, if only one is unknown."""
    num_blocks: int
    """In memory."""
    num_bytes: int
    """Of those blocks, with what Python spends on them."""
    num_evicted: int
    """Blocks that left memory for want of room; many beside a low hit rate ask for more of it."""

    @property
    def hit_rate(self) -> float:
        """Hits among trained tokens that were looked up; 0 before the first."""
        return self.num_hits / max(1, self.num_hits + self.num_misses)


class LogprobCache:
    """Log-probs of trained tokens, by all that changes them; used by one thread.

    A row is found if all its trained tokens are known, whatever rows they were stored with: masks
    are merged, advantages, weights and groups change nothing. A version names a model's weights and
    what else in it changes numbers (its dtype); that it does is up to the caller.

    Not shared: up to 63 last tokens of a row with a longer row that begins like it.
    """

    def __init__(
        self, *, max_bytes: int = 256 * 2**20, folder: str | os.PathLike[str] | None = None
    ) -> None:
        """Start empty, or with what an earlier cache left in the folder.

        max_bytes: of memory; blocks that were not used for longest go first.
        folder: on a disk of this machine, made if missing: where blocks go that leave memory, all
            of them at the end, and where they are found again, by other processes too. It grows
            until versions are forgotten. None: what leaves memory is gone.

        Raises `ValueError` if the folder's file is damaged or not a cache's, and does not touch it.
        """
        if not isinstance(max_bytes, int) or max_bytes < _MIN_BYTES:
            raise ValueError(f"max_bytes is an int >= {_MIN_BYTES} (one block), got {max_bytes!r}")
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[BlockKey, Floats] = OrderedDict()  # last used last
        self._unwritten: set[BlockKey] = set()
        self._num_bytes = self._num_evicted = self._num_hits = self._num_misses = 0
        self._is_closed = False
        self._file = None
        if folder is not None:
            path = Path(folder)
            if path.exists() and not path.is_dir():
                raise ValueError(
                    f"folder {str(path)!r} is a file; allowed is a folder or a new name"
                )
            path.mkdir(parents=True, exist_ok=True)
            self._file = LogprobFile(path / _FILE_NAME)

    def lookup(self, row: Row, *, version: str, temperature: float = 1.0) -> Floats | None:
        """Return the row's log-probs; None if one of a trained token is not known.

        float64 [T], 0 where nothing is trained, the caller's own. Raises `ValueError` for a context
        other than None, bool, int, str, bytes and tuples of them.
        """
        self._check_open()
        found_T = np.zeros(len(row))
        for key, at, is_trained_K in logprob_blocks(row, version=version, temperature=temperature):
            known_K = self._find(key)
            if known_K is None or np.isnan(known_K[is_trained_K]).any():
                self._num_misses += row.num_trained
                return None
            found_T[at][is_trained_K] = known_K[is_trained_K]
        self._num_hits += row.num_trained
        return found_T

    def store(
        self,
        row: Row,
        logprobs_T: Sequence[float] | Floats,
        *,
        version: str,
        temperature: float = 1.0,
    ) -> Floats:
        """Keep log-probs of a row's trained tokens; return them as lookups will find them.

        A token that is known keeps its first value: the same token computed in another forest
        differs by rounding, and whoever has the first finds it again.

        logprobs_T: one for each token; looked at on trained tokens alone, where they are finite.
        """
        self._check_open()
        given_T = np.asarray(logprobs_T, dtype=np.float64)
        if given_T.shape != (len(row),):
            raise ValueError(f"logprobs has shape {given_T.shape}, the row has {len(row)} tokens")
        bad = row.trained[~np.isfinite(given_T[row.trained])]
        if len(bad):
            raise ValueError(f"logprobs[{bad[0]}] is {given_T[bad[0]]}, and the token is trained")
        kept_T = np.zeros(len(row))
        for key, at, is_trained_K in logprob_blocks(row, version=version, temperature=temperature):
            block_K: Floats = np.where(is_trained_K, given_T[at], np.nan)
            known_K = self._find(key)
            if known_K is not None:
                block_K = merge(known_K, block_K)
            if known_K is None or np.isnan(known_K[is_trained_K]).any():
                self._keep(key, block_K, is_written=False)
            kept_T[at][is_trained_K] = block_K[is_trained_K]
        return kept_T

    def forget(self, version: str) -> None:
        """Drop all of a version from memory and the folder; one that is not there is forgotten."""
        self._check_open()
        check_version(version)
        for key in [key for key in self._blocks if key.version == version]:
            self._drop(key)
        if self._file is not None:
            self._file.forget(version)

    def flush(self) -> None:
        """Write to the folder what is in memory alone; without a folder there is nowhere to."""
        self._check_open()
        if self._file is not None and self._unwritten:
            self._file.write([(key, self._blocks[key]) for key in self._unwritten])
            self._unwritten.clear()

    def close(self) -> None:
        """Flush and let go of memory and file; a second time changes nothing."""
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._blocks.clear()
            self._num_bytes = 0
            if self._file is not None:
                self._file.close()

    @property
    def stats(self) -> CacheStats:
        """What was found until here, and what is in memory."""
        return CacheStats(
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_blocks=len(self._blocks),
            num_bytes=self._num_bytes,
            num_evicted=self._num_evicted,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, key: BlockKey) -> Floats | None:
        """Return a block from memory or the file, as the last used."""
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        block_K = None if self._file is None else self._file.read(key)
        if block_K is not None:
            self._keep(key, block_K, is_written=True)
        return block_K

    def _keep(self, key: BlockKey, block_K: Floats, *, is_written: bool) -> None:
        """Put a block into memory, or in its own place there, and make room for it."""
        if key not in self._blocks:
            self._num_bytes += _num_bytes(block_K)
        self._blocks[key] = block_K
        if not is_written:
            self._unwritten.add(key)
        while self._num_bytes > self._max_bytes:
            oldest = next(iter(self._blocks))
            if oldest in self._unwritten:
                self.flush()  # all at once: one transaction for many blocks that leave later
            self._drop(oldest)
            self._num_evicted += 1

    def _drop(self, key: BlockKey) -> None:
        self._num_bytes -= _num_bytes(self._blocks.pop(key))
        self._unwritten.discard(key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("this cache is closed; make another one on the same folder")


def _num_bytes(block_K: Floats) -> int:
    return block_K.nbytes + _OVERHEAD
