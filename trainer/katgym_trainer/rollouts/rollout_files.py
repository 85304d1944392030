"""Reads the rollouts that `katgym eval`, `katgym rollouts collect` and others kept on disk.

Not here: `failures.jsonl`, whose rollouts have no valid reward; writing (`katgym.evaluation`,
`katgym.rollout_store`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.evaluation.store import read_lock
from katgym.rollout import Rollout
from katgym.rollout_store import RolloutStore, stored_rollouts
from katgym.rollout_store.records import ENDED
from katgym.storage import read_journal

logger = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, Any]]


def read_rollouts(path: str | os.PathLike[str]) -> Iterator[Rollout]:
    """Return the rollouts of a run folder or one `rollouts.jsonl`, or those of a rollout store.

    They are read one at a time, as they are asked for. Of a file they come in the order of its
    lines; a last line without its end, which an interrupted run leaves, is left out with a warning.
    Tools' schemas are those of the `lock.json` beside the lines; without one, rollouts have none,
    which is warned of. Of a store come all that have ended, group by group (`stored_rollouts`).

    Raises `ValueError` if there is no such file, and, while reading, with file and number of a line
    that is no rollout.
    """
    given = Path(path)
    if RolloutStore.is_at(given):
        return _read_store(given)
    lines = given / "rollouts.jsonl" if given.is_dir() else given
    if not lines.is_file():
        raise ValueError(
            f"no rollouts at {str(given)!r}: wanted a run folder, its rollouts.jsonl, or a rollout"
            " store"
        )
    return _read(lines, _locked_tools(lines.parent))


def rollouts_sha256(path: Path) -> str:
    """Return what tells the rollouts at a path from others: changed rollouts have another hash."""
    if not RolloutStore.is_at(path):
        file = path / "rollouts.jsonl" if path.is_dir() else path
        return hashlib.sha256(file.read_bytes()).hexdigest()
    # What a session has sampled cannot change once it has ended; how it is judged can.
    digest = hashlib.sha256()
    with RolloutStore.open(path, create=False) as store:
        for record in sorted(store.sessions(), key=lambda record: record.session_id):
            if record.status in ENDED:
                told = [record.session_id, record.group_id, str(record.status), record.reward]
                digest.update(json.dumps(told).encode())
    return digest.hexdigest()


def _read_store(folder: Path) -> Iterator[Rollout]:
    with RolloutStore.open(folder, create=False) as store:
        yield from stored_rollouts(store)


def _read(path: Path, tools: Mapping[str, Tools]) -> Iterator[Rollout]:
    for number, data in enumerate(read_journal(path), start=1):
        try:
            rollout = Rollout.from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ValueError(
                f"{str(path)!r} line {number}: not a rollout: {type(e).__name__}: {e}"
            ) from e
        name = _env_name(rollout.env_id, rollout.env_kwargs)
        yield dataclasses.replace(rollout, tools=tools.get(name, ()))
    if _is_cut(path):
        logger.warning("left out the last line of %s, which has no end", path)


def _locked_tools(folder: Path) -> dict[str, Tools]:
    """Return the tools' schemas of each env of a run."""
    if not (folder / "lock.json").is_file():
        logger.warning(
            "no lock.json in %s: its rollouts come without their tools' schemas, which prompts"
            " rendered of their messages need",
            folder,
        )
        return {}
    envs = read_lock(folder)["envs"]
    return {_env_name(env["env_id"], env["kwargs"]): env["tools"] for env in envs}


def _env_name(env_id: str, kwargs: Mapping[str, Any]) -> str:
    return f"{env_id} {json.dumps(dict(kwargs), sort_keys=True)}"


def _is_cut(path: Path) -> bool:
    """Return whether a file's last byte ends no line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
