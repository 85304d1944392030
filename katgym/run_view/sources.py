"""Reads a folder into a `RunView`: an evaluation, a training run or a rollout store.

Not here: which metrics become which chart (`panels.py`), which groups are kept (`selection.py`).
"""

from __future__ import annotations

from pathlib import Path

from katgym.errors import UsageError
from katgym.evaluation.store import read_lock
from katgym.rollout_store.store import DATABASE
from katgym.run_view.evaluation_source import evaluation_view
from katgym.run_view.run_view import RunKind, RunView
from katgym.run_view.selection import Selection
from katgym.run_view.stored_groups import stored_groups
from katgym.run_view.token_texts import find_token_texts
from katgym.run_view.training_source import training_view


def read_run(
    folder: Path, selection: Selection | None = None, *, tokenizer: Path | None = None
) -> RunView:
    """Return what the pages show of a run, also of one that is still written to.

    tokenizer: a model's folder; None looks where the run's lock says. Raises `UsageError` for a
    folder that is no run, and when no group is as asked for.
    """
    selection = selection or Selection()
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder; name the folder of a run")
    if (folder / DATABASE).is_file() and not (folder / "lock.json").exists():
        return _store_view(folder, selection, tokenizer)
    lock = read_lock(folder)
    texts, missing = find_token_texts(folder, lock, tokenizer)
    read = evaluation_view if "envs" in lock else training_view
    return read(folder, lock, selection=selection, texts=texts, missing_texts=missing)


def _store_view(folder: Path, selection: Selection, tokenizer: Path | None) -> RunView:
    """Return the view of a rollout store, such as a gateway's: groups, and nothing else."""
    texts, missing = find_token_texts(folder, {}, tokenizer)
    groups, num_groups, notes = stored_groups(folder, selection)
    has_tokens = any(view.rollout.has_tokens for group in groups for view in group.rollouts)
    if not groups:
        notes = [*notes, "The store holds no sessions yet."]
    return RunView(
        name=folder.resolve().name,
        kind=RunKind.STORE,
        facts=[("folder", str(folder)), ("sessions", str(sum(len(g.rollouts) for g in groups)))],
        notes=[*notes, *([missing] if missing and has_tokens else [])],
        groups=groups,
        num_groups=num_groups,
        token_texts=texts,
    )
