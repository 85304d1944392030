"""The runs below a folder, and what a list of them says of each.

Not here: a run's own page (`source.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.evaluation.verification.marks import find_mark
from katgym.rollout_store import SessionStatus, StoreReader
from katgym.rollout_store.groups import by_group, chosen_attempts, is_held_out
from katgym.rollout_store.records import has_valid_reward, reward_value
from katgym.rollout_store.rollouts import rollout_of
from katgym.run_view.reading.lock_facts import evaluation_facts, training_facts
from katgym.run_view.reading.metric_files import finite, read_steps
from katgym.run_view.reading.source import run_kind, store_folder
from katgym.run_view.run_view import RunKind, known_mean

_MAX_DEPTH = 6
_MAX_FOLDERS = 20_000
"""Folders that are looked into; a search of a whole disk ends."""
_SKIPPED = ("node_modules", "site-packages", "__pycache__")
_FILES = ("lock.json", "summary.json", "metrics.jsonl", "eval.jsonl", "live.sqlite", "finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run below a folder."""

    folder: Path
    name: str
    """Its path below the folder."""

    @property
    def slug(self) -> str:
        """Its name in addresses: the same in every call, and fit for any file system."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-").lower()[-48:]
        return f"{readable}-{hashlib.sha256(os.fsencode(self.name)).hexdigest()[:6]}".lstrip("-")

    def stamp(self) -> tuple[Any, ...]:
        """Return what changes when the run is written to."""
        found: list[Any] = []
        for folder in (self.folder, self.folder / "rollouts"):
            for name in _FILES:
                try:
                    told = (folder / name).stat()
                except OSError:
                    continue
                found.append((name, told.st_mtime_ns, told.st_size))
            try:
                found.append((folder / "live.sqlite-wal").stat().st_size)
            except OSError:
                continue
        return tuple(found)


def find_runs(folder: Path) -> list[FoundRun]:
    """Return the runs in and below a folder, by name; `UsageError` where there is no folder."""
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder; name one that holds runs")
    return sorted(_runs_below(folder), key=lambda run: run.name)


def _runs_below(top: Path) -> Iterator[FoundRun]:
    """Yield the runs; nothing inside a run is one of its own."""
    for num_seen, (at, names, files) in enumerate(os.walk(top)):
        folder = Path(at)
        if ("lock.json" in files and _is_run(folder)) or StoreReader.is_at(folder):
            names.clear()
            relative = folder.relative_to(top)
            name = str(relative) if relative.parts else folder.resolve().name
            yield FoundRun(folder=folder, name=name)
        depth = len(folder.relative_to(top).parts)
        if depth >= _MAX_DEPTH or num_seen >= _MAX_FOLDERS:
            names.clear()
        names[:] = sorted(n for n in names if not n.startswith(".") and n not in _SKIPPED)


def _is_run(folder: Path) -> bool:
    try:
        lock, _ = run_kind(folder)
    except UsageError:
        return False
    return "envs" in lock or "run" in lock


def run_row(run: FoundRun) -> dict[str, Any]:
    """Return what the list of runs says of one; a run that cannot be read says why."""
    row: dict[str, Any] = {"slug": run.slug, "name": run.name}
    try:
        lock, kind = run_kind(run.folder)
        told = dict(evaluation_facts(lock) if kind is RunKind.EVALUATION else training_facts(lock))
        row |= {
            "kind": str(kind),
            "model": told.get("policy") or told.get("model", ""),
            "envs": told.get("envs", ""),
            "begun": told.get("begun", ""),
        }
        row |= _rollouts(store_folder(run.folder, kind), lock, kind)
        if kind is RunKind.TRAINING:
            row |= _steps(run.folder)
    except (UsageError, OSError) as e:
        row["problem"] = str(e)
    except (KeyError, TypeError, AttributeError) as e:  # a lock.json of another shape than ours
        row["problem"] = f"lock.json has not what a run's has: {e!r}"
    return row


def _rollouts(store: Path, lock: Mapping[str, Any], kind: RunKind) -> dict[str, Any]:
    """Return the counts and means of a run's rollouts; of a training run, of those trained on."""
    sessions, records = [], []
    if StoreReader.is_at(store):
        with StoreReader.open(store) as opened:
            sessions = opened.sessions()
        groups = by_group(sessions)
        records = [one for members in groups.values() for one in chosen_attempts(members)]
    ended = [r for r in records if r.status is not SessionStatus.OPEN and not is_held_out(r)]
    valid = [record for record in ended if has_valid_reward(record)]
    planned = None
    if kind is RunKind.EVALUATION:
        planned = sum(env["num_tasks"] for env in lock["envs"]) * lock["group_size"]
    return {
        "rollouts": len(ended),
        "planned": planned,
        "invalid": len(ended) - len(valid),
        "reward": known_mean(reward_value(record) for record in valid),
        "success": known_mean(rollout_of(record).is_success for record in valid),
        "verified": find_mark(lock, sessions),
    }


def _steps(folder: Path) -> dict[str, Any]:
    """Return how far a training run is, and what its latest checkpoint came to."""
    lines, _ = read_steps(folder / "metrics.jsonl")
    evaluations, _ = read_steps(folder / "eval.jsonl")
    latest = [value for line in evaluations if (value := finite(line.get("success"))) is not None]
    found: dict[str, Any] = {"step": lines[-1]["step"] if lines else 0}
    return found | ({"success": latest[-1]} if latest else {})
