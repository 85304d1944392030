"""Readers of the rollouts that `katgym eval`, `katgym rollouts collect` and others keep on disk.

Not here: writing (`katgym.evaluation`, `katgym.rollout_store`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import UsageError
from katgym.play.rollout import Rollout
from katgym.rollout_store import StoreReader, stored_rollouts
from katgym.rollout_store.atif.reading import atif_rollouts
from katgym.rollout_store.atif.trajectory import is_atif
from katgym.rollout_store.records import ENDED
from katgym.system import read_journal

logger = logging.getLogger(__name__)


def read_rollouts(path: str | os.PathLike[str]) -> Iterator[Rollout]:
    """Return the rollouts of a run's folder, of a rollout store or several gateways', or of a file.

    A file has rollouts or trajectories of ATIF, one a line, or is a single trajectory (`.json`).

    They are read one at a time, as they are asked for. Of a file they come in the order of its
    lines; a last line without its end, which an interrupted run leaves, is left out with a warning.
    Of a store come all that have ended, group by group (`stored_rollouts`).

    Raises `ValueError` if there is no such file, and, while reading, with file and number of a line
    that is no rollout.
    """
    given = Path(path)
    if StoreReader.is_at(given):
        return _read_store(given)
    if not given.is_file():
        raise ValueError(
            f"no rollouts at {str(given)!r}: wanted the folder of a run or of a rollout store, or a"
            " file of exported rollouts or of ATIF"
        )
    if given.suffix == ".json":
        return _read_trajectory(given)
    return _read_file(given)


def rollouts_sha256(path: Path) -> str:
    """Return what tells the rollouts at a path from others: changed rollouts have another hash."""
    if not StoreReader.is_at(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    # What a session has sampled cannot change once it has ended; how it is judged can.
    digest = hashlib.sha256()
    with StoreReader.open(path) as store:
        for record in sorted(store.sessions(), key=lambda record: record.session_id):
            if record.status in ENDED:
                value = None if record.reward is None else record.reward.value
                judged = [record.session_id, record.group_id, str(record.status), value]
                digest.update(json.dumps(judged).encode())
    return digest.hexdigest()


def _read_store(folder: Path) -> Iterator[Rollout]:
    with StoreReader.open(folder) as store:
        yield from stored_rollouts(store)


def _read_trajectory(path: Path) -> Iterator[Rollout]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not is_atif(data):
            raise UsageError("no trajectory of ATIF; rollouts come in lines, in a .jsonl file")
        yield from atif_rollouts(data)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{str(path)!r}: {e}") from e


def _read_file(path: Path) -> Iterator[Rollout]:
    for number, data in enumerate(read_journal(path), start=1):
        try:
            if is_atif(data):
                yield from atif_rollouts(data)
            else:
                yield Rollout.from_json(data)
        except UsageError as e:
            raise ValueError(f"{str(path)!r} line {number}: {e}") from e
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if size and file.read() != b"\n":
            logger.warning("left out the last line of %s, which has no end", path)
