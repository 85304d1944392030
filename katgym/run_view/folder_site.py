"""The files of the pages of all runs below a folder: path -> text, read anew when runs grow.

    index.html, runs.js           the list of runs
    leaderboard.html              evaluations, ranked, each linked to its rollouts
    curves.html                   training runs, one over another
    compare.html                  two runs by task; `compare.html#a=SLUG&b=SLUG` says which
    runs/SLUG/                    a run's own pages (`run_site.py`)

Not here: writing them (`static_site.py`), serving them (`server.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from katgym.evaluation.leaderboard.leaderboard import build_leaderboard
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import read_rollouts
from katgym.run_view.page_frame import data_script, site_assets
from katgym.run_view.reading.found_runs import FoundRun, find_runs, run_row
from katgym.run_view.reading.source import read_run, run_kind, store_folder
from katgym.run_view.reading.stored_groups import KnownHeads, read_group
from katgym.run_view.run_site import RunSite
from katgym.run_view.run_view import RunKind
from katgym.run_view.screens.folder_pages import compare_page, curves_page, runs_page
from katgym.run_view.screens.leaderboard_page import leaderboard_page

_REST = 4.0
"""Times as long as reading something took, it is not read again: looking is not the run's work."""


class FolderSite:
    """The pages of the runs below a folder."""

    def __init__(self, folder: Path, *, tokenizer: Path | None = None) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self._found_until_s = 0.0
        self._known: dict[str, KnownHeads] = {}
        self._kept: dict[str, tuple[Any, float, Any]] = {}
        self._group: tuple[Any, dict[str, str]] = (None, {})
        self.runs: dict[str, FoundRun] = {}
        """By slug, as they were found last."""
        self.find()

    def find(self) -> None:
        """Look for runs, unless that was done a moment ago."""
        began_s = time.monotonic()
        if began_s < self._found_until_s:
            return
        self.runs = {run.slug: run for run in find_runs(self.folder)}
        took_s = time.monotonic() - began_s
        self._found_until_s = began_s + took_s * (1 + _REST)

    def text(self, path: str) -> str | None:
        """Return a file; None for a path without one."""
        first, _, rest = path.partition("/")
        if first == "runs":
            slug, _, own = rest.partition("/")
            return self._run_text(slug, own) if slug in self.runs else None
        if first == "assets":
            return site_assets().get(path)
        match path:
            case "index.html":
                return runs_page(self.folder.resolve().name or str(self.folder))
            case "runs.js":
                self.find()
                return data_script({"runs": [self._row(run) for run in self.runs.values()]})
            case "compare.html":
                return compare_page()
            case "curves.html":
                shown = [
                    r for r in self.readable_runs() if self._row(r)["kind"] == RunKind.TRAINING
                ]
                return curves_page({r.name: self.run_site(r.slug).view.panels for r in shown})
            case "leaderboard.html":
                return self._leaderboard()
        return None

    def readable_runs(self) -> list[FoundRun]:
        """Return the runs that can be read; the list of runs says what is wrong with others."""
        return [run for run in self.runs.values() if "problem" not in self._row(run)]

    def run_site(self, slug: str) -> RunSite:
        """Return a run's pages as it is now."""
        run = self.runs[slug]
        site: RunSite = self._fresh(f"site {slug}", run, partial(self._read, run))
        return site

    def _run_text(self, slug: str, path: str) -> str | None:
        site = self.run_site(slug)
        if not path.startswith("groups/"):
            return site.text(path)
        if (head := site.head_of(path)) is None:
            return None
        key = slug, head
        if self._group[0] != key:  # its chunks are asked for one after the other
            self._group = key, dict(site.group_files(head))
        return self._group[1].get(path)

    def _read(self, run: FoundRun) -> RunSite:
        known = self._known.setdefault(run.slug, {})
        view = read_run(run.folder, None, tokenizer=self.tokenizer, known=known)
        view = replace(view, name=run.name)
        store = store_folder(run.folder, view.kind)
        return RunSite(
            view=view, load=partial(read_group, store), root="../../", has_runs=len(self.runs) > 1
        )

    def _row(self, run: FoundRun) -> dict[str, Any]:
        row: dict[str, Any] = self._fresh(f"row {run.slug}", run, lambda: run_row(run))
        return row

    def _fresh(self, name: str, run: FoundRun, read: Callable[[], Any]) -> Any:
        """Return what was read, or read it when the run has changed since."""
        stamp, until_s, value = self._kept.get(name, (None, 0.0, None))
        now_s, new = time.monotonic(), run.stamp()
        if stamp is None or (new != stamp and now_s >= until_s):
            value = read()
            took_s = time.monotonic() - now_s
            self._kept[name] = new, now_s + took_s * (1 + _REST), value
        return value

    def _leaderboard(self) -> str | None:
        """Return the leaderboard of all evaluations; None before the first rollout."""
        entries, links = [], {}
        for run in self.readable_runs():
            row = self._row(run)
            if row["kind"] == RunKind.EVALUATION and row["rollouts"]:
                entry = self._fresh(f"entry {run.slug}", run, partial(_entry, run))
                entries.append(replace(entry, verified=row.get("verified", "")))
                links[run.name] = f"runs/{run.slug}/index.html"
        if not entries:
            return None
        return leaderboard_page(build_leaderboard(entries, title="Leaderboard"), links=links)


def _entry(run: FoundRun) -> LeaderboardEntry:
    lock, _ = run_kind(run.folder)
    return LeaderboardEntry.from_lock(run.name, lock, summarize(read_rollouts(run.folder)))
