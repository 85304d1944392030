"""Rank runs: a table here, and Markdown, HTML and Every Eval Ever JSON in a folder.

Runs are ranked only against runs of the same tasks; what else differs is written beside the table.
Cells lead to the rollouts of runs that have pages (`katgym view RUN --html`).

example:
  katgym leaderboard runs/oracle runs/smollm2 --out board
  katgym leaderboard runs/* --by mean_reward --set organization="'Example Lab'"
  katgym leaderboard runs/* --set verify=true
  katgym leaderboard runs/mine --set model_ids='["mine=example/my-model"]'
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym.cli.plan_options import print_unfinished
from katgym.errors import UsageError
from katgym.evaluation.leaderboard.certified import certify, find_task_trust
from katgym.evaluation.leaderboard.every_eval_ever import (
    ExportInfo,
    Relationship,
    write_every_eval_ever,
)
from katgym.evaluation.leaderboard.leaderboard import Measure, build_leaderboard
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.leaderboard.leaderboard_text import (
    leaderboard_markdown,
    leaderboard_table,
)
from katgym.evaluation.run_state import RunState
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.evaluation.verification.report import VerifyReport
from katgym.evaluation.verification.verify import verify_run
from katgym.play.rollout import Rollout
from katgym.run_view.screens.leaderboard_page import leaderboard_page

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardConfig:
    """How runs are ranked and published."""

    by: Measure = Measure.HEADLINE
    """What runs are ranked by; headline is what each env says."""
    organization: str = "unspecified"
    """Who ran the evaluation, for Every Eval Ever."""
    model_ids: tuple[str, ...] = ()
    """RUN=DEVELOPER/MODEL: what a run's model is called in Every Eval Ever."""
    title: str = "katgym leaderboard"
    """Heading of the pages."""
    success_threshold: float | None = None
    """Reward that counts as success, in place of what the envs say."""
    verify: bool = False
    """Verify every run, as `katgym verify` does, and mark its row with what was found; metrics that
    do not come out again, and tasks whose trust is not complete, are left out."""
    relationship: Relationship = "other"
    """Of who ran it to the model's developer: first_party, third_party, collaborative or other."""


OPTIONS = ConfigOptions(LeaderboardConfig, flags=("by",))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="folders of runs")
    add_option(parser, "out", "folder (leaderboard)", default=Path("leaderboard"))
    add_option(parser, "json")
    OPTIONS.add(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table and write the files."""
    config = OPTIONS.config(args)
    locks = {folder: read_lock(folder) for folder in args.runs}
    names = _names(args.runs)
    model_ids: dict[str, str] = {}
    for text in config.model_ids:
        name, mark, model_id = text.partition("=")
        if not mark or name not in names.values():
            raise UsageError(f"model_ids are RUN=DEVELOPER/MODEL with a run's name, got {text!r}")
        model_ids[name] = model_id
    lines = {folder: read_rollouts(folder) for folder in args.runs}
    states = {folder: RunState.of(folder, locks[folder], lines[folder]) for folder in args.runs}
    entries = {
        folder: LeaderboardEntry.from_lock(
            names[folder],
            locks[folder],
            summarize(lines[folder], success_threshold=config.success_threshold),
            unfinished=states[folder].missing,
        )
        for folder in args.runs
    }
    if config.verify:
        reports: dict[Path, VerifyReport | None] = {}
        for folder, entry in entries.items():
            console.stderr.print(f"verifying {folder} ...")
            try:
                reports[folder] = asyncio.run(verify_run(folder))
            except UsageError as e:
                logger.warning("%s is not verified: %s", entry.run_name, e)
                reports[folder] = None
        trust = find_task_trust(itertools.chain(*lines.values()), reports.values())
        for folder, entry in entries.items():
            entries[folder], lines[folder] = certify(
                entry,
                lines[folder],
                reports[folder],
                trust,
                success_threshold=config.success_threshold,
            )
    board = build_leaderboard(entries.values(), title=config.title, measure=config.by)
    if args.json:
        found = {e.run_name: e.summary.to_json() for e in entries.values()}
        if config.verify:
            for entry in entries.values():
                found[entry.run_name]["verified"] = entry.verified
                found[entry.run_name]["left_out"] = dict(entry.left_out)
                found[entry.run_name]["notes"] = {n: list(told) for n, told in entry.notes.items()}
        console.print_json(found)
    else:
        console.stdout.print(leaderboard_table(board))
    if args.out.exists() and not args.out.is_dir():
        raise UsageError(f"{str(args.out)!r} is a file; --out names a folder")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "leaderboard.md").write_text(leaderboard_markdown(board), encoding="utf-8")
    page = leaderboard_page(board, links=_links(names, args.out))
    (args.out / "leaderboard.html").write_text(page, encoding="utf-8")
    for folder, entry in entries.items():
        chosen = model_ids.get(entry.run_name) or _model_id_of(locks[folder])
        _export(args.out, config, entry, locks[folder], lines[folder], chosen)
    console.stderr.print(f"written: {args.out / 'leaderboard.md'}, .html and every_eval_ever/")
    print_unfinished(*states.values())
    return 0


def _names(folders: list[Path]) -> dict[Path, str]:
    """Name runs by their folders; more of the path where the last part is not unique."""
    depth = 1
    while True:
        names = {f: "/".join(f.resolve().parts[-depth:]) for f in folders}
        if len(set(names.values())) == len(names):
            return names
        depth += 1
        if depth > max(len(f.resolve().parts) for f in folders):
            raise UsageError("the same run is named twice")


def _links(names: Mapping[Path, str], out: Path) -> dict[str, str]:
    """Return name of a run -> the address of its pages, where `katgym view --html` wrote some."""
    pages = {name: folder / "view" / "index.html" for folder, name in names.items()}
    return {
        name: quote(Path(os.path.relpath(page, out)).as_posix())
        for name, page in pages.items()
        if page.is_file()
    }


def _export(
    out: Path,
    config: LeaderboardConfig,
    entry: LeaderboardEntry,
    lock: Mapping[str, Any],
    lines: list[Rollout],
    model_id: str | None,
) -> None:
    """Write one run in the Every Eval Ever schema, or say why not."""
    if model_id is None:
        logger.warning(
            "%s is not exported: its policy %r names no developer/model; pass"
            " --set model_ids='[\"%s=...\"]'",
            entry.run_name,
            entry.policy,
            entry.run_name,
        )
        return
    if why := "; ".join([entry.unfinished] if entry.unfinished else entry.left_out.values()):
        logger.warning("%s is not exported: %s", entry.run_name, why)
        return
    if any(env.mean_reward is None for env in entry.summary.envs.values()):
        logger.warning("%s is not exported: an env has no valid rollout", entry.run_name)
        return
    info = ExportInfo(
        model_id=model_id,
        organization=config.organization,
        evaluator_relationship=config.relationship,
        timestamp_s=int(datetime.fromisoformat(lock["created"]).timestamp()),
        katgym_version=lock["katgym_version"],
        sampling={**lock["sampling"], **({"tts": lock["tts"]} if "tts" in lock else {})},
        plugin_versions={env["env_id"]: env["plugin_version"] for env in lock["envs"]},
    )
    write_every_eval_ever(out / "every_eval_ever", lines, entry.summary, info)


def _model_id_of(lock: Mapping[str, Any]) -> str | None:
    """Return `developer/model` as far as the lock tells it."""
    details = lock.get("policy_details", {})
    if details.get("model_id"):
        return str(details["model_id"])
    scheme, _, rest = str(lock["policy"]).partition(":")
    if not rest:  # a built-in baseline; one with options is another
        return None if "?" in scheme else f"katgym/{scheme}"
    model = rest.rpartition("#")[2]
    return model if scheme != "scripted" and model.count("/") == 1 else None
