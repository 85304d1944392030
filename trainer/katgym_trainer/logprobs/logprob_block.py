"""Blocks of a row's tokens, named by all that their log-probs depend on.

A block is 64 tokens, the last of a row what is left. Its digest is one of a chain, as those that
serving engines name their prefix caches by (https://docs.vllm.ai/en/latest/design/prefix_caching/):

    parent of block 0 = blake2b(version, temperature, context)
    digest = blake2b(parent, token ids, extras, expert routes where there are any)

Whole blocks of a shared prefix have the same names in every row. The last, partial block of a row
has another name than the whole block of a row that goes on. Not here: where blocks are kept
(`logprob_cache.py`, `logprob_file.py`).

Letters: T tokens of one row, K tokens of one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from katgym_trainer.config.rules import Positive, check_value
from katgym_trainer.row import Bools, Floats, Row

BLOCK_SIZE = 64
_DIGEST_SIZE = 16
_TOKEN_BYTES = 16
"""An int64 of its id, one of its extras."""


class BlockKey(NamedTuple):
    """The name of a block; the version stands beside the digest for blocks to be forgotten by."""

    version: str
    digest: bytes


class TrainedBlock(NamedTuple):
    """A block of a row that holds trained tokens."""

    key: BlockKey
    at: slice
    """Its tokens' places in the row."""
    is_trained_K: Bools


def logprob_blocks(row: Row, *, version: str, temperature: float) -> Iterator[TrainedBlock]:
    """Yield the blocks of a row that hold trained tokens, in its order.

    Raises `ValueError` for a version, temperature or context that cannot be part of a name.
    """
    check_version(version)
    check_value("temperature", temperature, Positive)
    if not _is_plain(row.context):
        raise ValueError(
            f"context {row.context!r} has no name that outlives the process; allowed for cached"
            " log-probs: None, bool, int, str, bytes and tuples of them"
        )
    # The parent of the first block is the same in every process.
    digest = _digest(ascii((version, float(temperature).hex(), row.context)).encode())
    is_trained_T = np.append(False, row.loss_mask[1:])
    extras_T = np.zeros_like(row.token_ids) if row.extras is None else row.extras
    tokens = np.stack([row.token_ids, extras_T], axis=1).astype("<i8").tobytes()
    size = BLOCK_SIZE * _TOKEN_BYTES
    for number in range(math.ceil(len(row) / BLOCK_SIZE)):
        at = slice(number * BLOCK_SIZE, (number + 1) * BLOCK_SIZE)
        routes = b"" if row.routes is None else row.routes.to_bytes(at)
        digest = _digest(digest + tokens[number * size :][:size] + routes)
        if is_trained_T[at].any():
            yield TrainedBlock(BlockKey(version, digest), at, is_trained_T[at])


def check_version(version: str) -> None:
    """Raise for what cannot name a version."""
    if not isinstance(version, str) or not version or not version.isprintable():
        raise ValueError(f"version is a str of printable characters, not empty, got {version!r}")


def merge(known_K: Floats, more_K: Floats) -> Floats:
    """Return log-probs of both, NaN where neither knows one; where both do, the first's."""
    both_K: Floats = np.where(np.isnan(known_K), more_K, known_K)
    return both_K


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_SIZE).digest()


def _is_plain(context: object) -> bool:
    """Return whether `ascii` of a context is equal exactly for equal ones, in every process."""
    if type(context) is tuple:
        return all(map(_is_plain, context))
    return context is None or type(context) in (bool, int, str, bytes)
